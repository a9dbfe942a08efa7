"""Folders of adapters that PEFT loads."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from hopyard.errors import NotFoundError, UsageError
from hopyard.missing import missing_extra
from hopyard.storage import files
from hopyard.storage.oserrors import write_errors
from hopyard.storage.temporary import temporary_name


def export_adapter(module: nn.Module, path: Path) -> Path:
    """Write the adapters of a model to a new folder, as ``PeftModel.from_pretrained`` reads them.

    Raises:
        MissingExtraError: PEFT is not installed.
        UsageError: the model is none of PEFT's, or the path is taken.
        NotFoundError: there is no folder to make it in.
        StorageError: it cannot be written; nothing was half-written.
    """
    try:
        from peft import PeftModel
    except ImportError as error:
        raise missing_extra("peft", "transformers", "Writing an adapter") from error
    if not isinstance(module, PeftModel):
        raise UsageError(_no_adapter(module, PeftModel))
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path} exists already. Give the path of a folder that is to be made.")
    if not path.parent.is_dir():
        raise NotFoundError(f"{path} cannot be written: there is no directory {path.parent}. Make it first.")
    unfinished = path.with_name(temporary_name())
    with write_errors(path):
        try:
            module.save_pretrained(str(unfinished))
            for written in unfinished.rglob("*"):
                if written.is_file():  # safetensors are for the user alone otherwise
                    files.give_usual_rights(written)
                files.sync(written)
            files.sync(unfinished)
            files.rename(unfinished, path)
            files.sync(path.parent)
        finally:
            files.remove_tree(unfinished)
    return path


def _no_adapter(module: nn.Module, kind: type[nn.Module]) -> str:
    within = [name for name, part in module.named_modules() if isinstance(part, kind)]
    if within:
        return (
            f"The model is a {type(module).__name__}, of which only {within[0]!r} has adapters of PEFT; a folder of "
            f"PEFT's would not hold the rest. Keep the whole with model.save(path), or write that part: "
            f'model.torch().get_submodule("{within[0]}").save_pretrained(path).'
        )
    return (
        f"The model is a {type(module).__name__} without adapters of PEFT. Keep the whole with model.save(path), or "
        "give the estimator peft.get_peft_model(base, config) as its model."
    )
