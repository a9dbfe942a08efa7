"""Folders of adapters that PEFT loads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hopyard.errors import NotFoundError, UsageError
from hopyard.missing import missing_extra
from hopyard.storage import files
from hopyard.storage.oserrors import write_errors
from hopyard.storage.temporary import temporary_name
from hopyard.wording import counted, some_names

_COMPILED = "_orig_mod."


def export_adapter(module: nn.Module, path: Path) -> Path:
    """Write the adapters of a model to a new folder, as ``PeftModel.from_pretrained`` reads them.

    Raises:
        MissingExtraError: PEFT is not installed.
        UsageError: the model is none of PEFT's, has several active adapters, or has trained tensors that such a folder
            does not hold; or the path is taken.
        NotFoundError: there is no folder to make it in.
        StorageError: it cannot be written; nothing was half-written.
    """
    try:
        from peft import PeftModel
    except ImportError as error:
        raise missing_extra("peft", "transformers", "Writing an adapter") from error
    module = getattr(module, "_orig_mod", module)  # of torch.compile
    if not isinstance(module, PeftModel):
        raise UsageError(_no_adapter(module, PeftModel))
    name = _active(module)
    if left_out := _left_out(module, name):
        raise UsageError(
            f"Training changed tensors that are not part of the adapter {name!r}, so that PEFT would make another "
            f"model: {some_names(left_out, 4)}. Name their modules in the configuration of the adapter "
            f"(modules_to_save={_modules(left_out)}) and train again, or keep the whole model with model.save(path)."
        )
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path} exists already. Give the path of a folder that is to be made.")
    if not path.parent.is_dir():
        raise NotFoundError(f"{path} cannot be written: there is no directory {path.parent}. Make it first.")
    unfinished = path.with_name(temporary_name())
    with write_errors(path):
        try:
            module.save_pretrained(str(unfinished), selected_adapters=[name])
            if name != "default":  # which alone PEFT puts there, and others into folders
                for written in list((unfinished / name).iterdir()):
                    files.rename(written, unfinished / written.name)
                files.remove_directory(unfinished / name)
            _as_not_compiled(unfinished)
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


def _as_not_compiled(folder: Path) -> None:
    """Name tensors within modules that ``torch.compile`` has wrapped as those of modules that it has not: others would
    be loaded as if they were not there."""
    from safetensors.torch import load_file, save_file

    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    if any(_COMPILED in name for name in tensors):
        plain = {name.replace(_COMPILED, ""): tensor for name, tensor in tensors.items()}
        save_file(plain, path, metadata={"format": "pt"})


def _active(module: Any) -> str:
    """The name of the active adapter of a model of PEFT's.

    Raises:
        UsageError: there are several.
    """
    names: list[str] = list(module.active_adapters)
    if len(names) != 1:
        raise UsageError(
            f"The model has {counted(len(names), 'active adapter')} ({', '.join(map(repr, names))}), but PEFT loads "
            "one from a folder. Keep the whole model with model.save(path), or write a folder for each with "
            "model.torch().save_pretrained(path), which load_adapter and set_adapter put into one model."
        )
    return names[0]


def _left_out(module: Any, name: str) -> list[str]:
    """The tensors that training has changed and the folder of an adapter does not have."""
    from peft import get_peft_model_state_dict

    written = get_peft_model_state_dict(module, adapter_name=name).values()
    saved = {value.data_ptr() for value in written if isinstance(value, torch.Tensor)}
    trained = [(own, tensor) for own, tensor in module.named_parameters() if tensor.requires_grad]
    # PEFT puts the name of the adapter into the names of its tensors. Some it writes as others: an encoder's prompts.
    trained = [(own, tensor) for own, tensor in trained if name not in own.split(".")]
    for within, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._NormBase) and part.running_mean is not None:
            trained.append((f"{within}.running_mean", part.running_mean))
    return [own for own, tensor in trained if tensor.data_ptr() not in saved]


def _modules(names: Sequence[str]) -> list[str]:
    """The last parts of the names of the modules that these tensors are of, as ``modules_to_save`` takes them."""
    return list(dict.fromkeys(name.split(".")[-2] for name in names))


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
