"""Answers commands: one JSON object a line on the input, one on the output; what libraries print goes elsewhere."""

from __future__ import annotations

import json
import os
import sys
import traceback


def serve(commands: object) -> None:
    """``{"do": "open", "rows": 3}`` is ``commands.open(rows=3)``, until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = getattr(commands, command.pop("do"))(**command)
        except BaseException as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        print(json.dumps(answer), file=answers, flush=True)
