"""The models of a revision by name."""

from __future__ import annotations

from typing import Any

from hopyard.errors import UsageError
from hopyard.objects import Tree
from hopyard.stockroom.models.content import StoredModel, read, write
from hopyard.stockroom.models.leaves import Taken, take_in
from hopyard.stockroom.models.versions import split_path
from hopyard.stockroom.records import ModelRecord
from hopyard.stockroom.views.shelf import ListedThing, NamedThings
from hopyard.stockroom.views.view import ObjectReader, writable


class ModelShelf(NamedThings):
    """Models by name: ``shelf["resnet"] = net.state_dict()``; ``net.load_state_dict(shelf["resnet"])``.

    A model is whatever dicts, lists, tuples, plain values, tensors and arrays make up: a ``state_dict``, that of an
    optimizer, ``model.get_weights()``; or a Keras model, which is stored as its weights by path.
    """

    _shelf, _what = "model", "model"

    def __getitem__(self, name: str) -> Any:
        """The model as it was saved, in memory of its own. See :meth:`read`."""
        return self.read(name)

    def read(self, name: str, prefix: str | None = None, verify: bool = True) -> Any:
        """The model as it was saved, or a part of it.

        Args:
            prefix: read only what lies under the keys at the top that begin with it: ``"layer1."``.
            verify: compare its tensors with their digests, on all cores, when this process first reads them. False:
                hand them out as they lie there, which only maps them.

        Returns:
            The same containers and kinds of leaves; tensors are on the CPU and may be written to, which changes
            nothing that is stored. Where the repository is on this machine they are mapped, and read when touched.

        Raises:
            MissingKeyError: there is no such model, or key; UsageError: ``prefix`` for what is not a dict.
            CorruptError: some of it is not what was saved.
            MissingExtraError: the library that a tensor came from is not installed; use :meth:`tree`.
        """
        return self._content(name, prefix).values(verify)

    def tree(self, name: str, prefix: str | None = None, verify: bool = True) -> Tree:
        """The same without any library: leaves are read-only ``hopyard.objects.Tensor``.

        They know their digest: storing them again, in whatever tree, hashes and writes nothing.
        """
        return self._content(name, prefix).tree(verify)

    def record(self, name: str) -> ModelRecord:
        """The record of the model in the revision.

        Raises:
            MissingKeyError: there is none of this name.
        """
        found = super().record(name)
        assert isinstance(found, ModelRecord)
        return found

    def __setitem__(self, name: str, model: Any) -> None:
        """Store a model under this name. If it cannot be, the shelf stays as it was.

        Raises:
            DataError: something in it cannot be stored; says what, where, and what to do.
            UsageError: the name cannot be one, or this is not open for writing.
        """
        self._checked(name)
        writable(self._view)
        self.put(name, take_in(model, name))

    def put(self, name: str, taken: Taken) -> None:
        """The same for a model that was taken in before."""
        self._checked(name)
        draft = writable(self._view)
        with draft.guard.write(f"a write to model/{name}"):
            if self._is_version(name):
                model, _, number = name.rpartition("/")
                raise UsageError(
                    f"model/{name} is version {number} of the registered model {model!r}, whose weights never change. "
                    f"Register another version: stock.registry.register({model!r}, weights)."
                )
            draft.set("model", name, write(draft.writer, taken))

    def __delitem__(self, name: str) -> None:
        """Take a model off the shelf.

        Raises:
            MissingKeyError: there is none of this name. UsageError: it is the last version of a registered model.
        """
        draft = writable(self._view)
        with draft.guard.write(f"a write to model/{self._checked(name)}"), draft.writing():
            if self._is_version(name):
                model, _, number = name.rpartition("/")
                if not any(each > int(number) for each in self.numbers(model)):
                    raise UsageError(
                        f"model/{name} is the last version of the registered model {model!r}, so its number would be "
                        "given again. Register the next one first; or undo the commit that registered it: hopyard "
                        "stock revert COMMIT."
                    )
            super().__delitem__(name)

    def numbers(self, name: str) -> list[int]:
        """Numbers of versions that are taken: of those of a registered model, and of models that are called so."""
        found = (split_path(each) for each in self)
        return sorted(place[1] for place in found if place is not None and place[0] == name)

    def versions(self, name: str | None = None) -> dict[str, list[int]]:
        """The numbers of the versions of each registered model, or of this one, both sorted."""
        found: dict[str, list[int]] = {}
        for each in self:
            place = split_path(each)
            if place is not None and name in (None, place[0]) and self._is_version(each):
                found.setdefault(place[0], []).append(place[1])
        return {model: sorted(found[model]) for model in sorted(found)}

    def _is_version(self, name: str) -> bool:
        record = self._view.record("model", name)
        return isinstance(record, ModelRecord) and record.about is not None

    def content(self, name: str) -> StoredModel:
        """The structure of a stored model: its skeleton, its tensors' dtypes, shapes and digests."""
        return self._content(name, None)

    @property
    def objects(self) -> ObjectReader:
        """The objects that the tensors of the model are read from."""
        return self._view.objects

    def _line(self, name: str) -> ListedThing:
        record = self.record(name)
        what = "model" if record.about is None else "model, registered version"
        return ListedThing(f"model/{name}", what, None, record.nbytes)

    def _content(self, name: str, prefix: str | None) -> StoredModel:
        content = read(self._view.objects, self.record(name), name)
        if prefix is not None:
            content.only(prefix)
        return content
