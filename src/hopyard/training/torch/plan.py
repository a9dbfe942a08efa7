"""Plans: one program that does for all members of a pack what their tapes say, with the bits that each has alone.

What is the same for all members (the batch, a frozen base, and all that follows from these) is computed once. Other
tensors have a slot for each member in one tensor, where an operation on that has the bits of the members' own
operations: each is compared, when a plan is made, on the tensors that it takes then. What differs, and what cannot be
done at once, is done member by member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from hopyard.training.torch.exact import (
    LINE,
    bytes_of,
    computed,
    form_of,
    form_of_call,
    forms_of,
    is_exact,
    members_of,
)
from hopyard.training.torch.rules import (
    VIEWS,
    Differing,
    Handle,
    JointCall,
    JointForm,
    product_of_rows,
    rules_for,
)
from hopyard.training.torch.stack import same_numbers
from hopyard.training.torch.tape import Recorded, Ref, Tape, _NotRecordedError, mapped, refs_in

_LARGE = 1 << 15
"""Numbers of a member's tensor, from which on joining those of all members costs more than a call for each."""

_MOST_BYTES = 1 << 24
"""Memory for all members' tensors, from which on they are computed one by one: so large pieces are given back to the
system each time, and a call for each costs nothing beside them."""

_MOST_BYTES_OF_PRODUCTS = 1 << 25
"""The same of some members' rows times one matrix, which is read once for all of them: beyond are other groups."""

_ATEN: Any = torch.ops.aten


class _OtherBranchError(Exception):
    """A computation would read other numbers in a batch than it did when it was recorded."""


class PlanInputs(NamedTuple):
    """Tensors that a plan takes, by their names on the tapes.

    Attributes:
        shared: those that are the same for all members.
        stacked: those with a slot for each member.
        own: of each member those that are not stacked.
        generators: of each member, for its random numbers.
        moving: names of the shared ones that lie elsewhere each time.
    """

    shared: Mapping[str, torch.Tensor]
    stacked: Mapping[str, torch.Tensor]
    own: Sequence[Mapping[str, torch.Tensor]]
    generators: Sequence[torch.Generator]
    moving: frozenset[str] = frozenset()


class OfMembers:
    """A result of all members: ``each`` of a member, and, where they lie so, the ``whole`` with a slot for each."""

    def __init__(self, each: Sequence[torch.Tensor], whole: torch.Tensor | None = None) -> None:
        self.each = each
        self.whole = whole


class PackPlan:
    """A program for all members of a pack.

    Attributes:
        takes: kinds and names of what the program is given.
        writes: names of the tensors that it changes in place.
        is_confirmed: whether it was compared on a batch that it was not made for.
        reads: whether it compares numbers in a batch with those that the tapes read.
    """

    def __init__(
        self,
        program: Callable[..., tuple[Any, ...]],
        takes: Sequence[tuple[str, Any]],
        constants: Sequence[torch.Tensor],
        result: Any,
        stacked: frozenset[int],
        count: int,
        writes: frozenset[str],
        reads: bool,
    ) -> None:
        self._program = program
        self.takes = takes
        self._constants = constants
        self._result = result
        self._stacked = stacked
        self._count = count
        self.writes = writes
        self.is_confirmed: bool = False
        self.reads = reads

    @torch.no_grad()
    def __call__(self, inputs: PlanInputs) -> Any:
        """The tapes' result, with a :class:`OfMembers` for each tensor, and with :class:`Differing` options.

        Raises:
            _OtherBranchError: the batch asks for a computation that is not on the tapes.
        """
        sources: dict[str, Any] = {
            "shared": inputs.shared,
            "stacked": inputs.stacked,
            "constant": self._constants,
            "generator": inputs.generators,
        }
        found = self._program(
            *(
                inputs.own[name[0]][name[1]] if kind == "own" else sources[kind][name]
                for kind, name in self.takes
            )
        )

        def spread(value: Any) -> Any:
            if not isinstance(value, Ref):
                return value
            each = found[value.number]
            if isinstance(each, (tuple, list)):
                return OfMembers(each)
            return (
                OfMembers(each.unbind(), each)
                if value.number in self._stacked
                else OfMembers([each] * self._count)
            )

        return mapped(self._result, spread)


def plan_for(tapes: Sequence[Tape], inputs: PlanInputs) -> PackPlan:
    """A plan for what is on the tapes of members, each on its own.

    Args:
        inputs: to compare operations on. Their generators and tensors are left as they are.

    Raises:
        _NotRecordedError: there is none.
    """
    with torch.no_grad():
        builder = _Builder(tapes, inputs)
        for place in range(len(tapes[0].operations)):
            builder.add(place)
        return builder.plan()


class _Held:
    """A tensor of a tape while a plan is made: ``one`` for all members, a ``whole`` with slots, or one for ``each``."""

    def __init__(
        self,
        one: Handle | None = None,
        whole: Handle | None = None,
        each: Sequence[Handle] | None = None,
    ) -> None:
        self.one, self.whole, self.each = one, whole, each
        self.lies_whole = whole is not None


class _FoundRule(NamedTuple):
    """How calls of one form are done for all members at once.

    Attributes:
        rule: None: member by member, unless memory for the results ``is_made`` for all of them.
        likes: forms of the results of each member, of no values.
        is_certain: whether this was seen on numbers that tell.
        width: members of one call, if not all of them; 0: all.
    """

    rule: JointForm | None
    is_made: bool
    likes: list[list[Any]]
    is_certain: bool
    width: int = 0


class _Builder:
    def __init__(self, tapes: Sequence[Tape], inputs: PlanInputs) -> None:
        self._tapes = tapes
        self._count = len(tapes)
        self._inputs = inputs
        self._graph = torch.fx.Graph()
        self._last_placeholder: Any = None
        self._takes: list[tuple[str, Any]] = []
        self._constants: list[torch.Tensor] = []
        self._placeholders: dict[tuple[str, Any], Handle] = {}
        self._held: dict[int, _Held] = {}
        self._found: dict[Any, _FoundRule] = {}
        self._writes: set[str] = set()
        self._reads = False
        if len({len(tape.operations) for tape in tapes}) > 1:
            raise _NotRecordedError("members do not do the same operations")
        self._last_use: dict[int, int] = {}
        self._last_write: dict[int, int] = {}
        for place, operation in enumerate(tapes[0].operations):
            self._last_use |= {ref.number: place for ref in operation.refs()}
            self._last_write |= {tapes[0].storages[number]: place for number in operation.written}
        for ref in refs_in(tapes[0].result):
            self._last_use[ref.number] = len(tapes[0].operations)
        self._differing = self._differing_storages()

    def _differing_storages(self) -> set[int]:
        """Memory that is written to with what differs from member to member."""
        first, storages = self._tapes[0], self._tapes[0].storages
        differing = {number for number, name in first.given.items() if name not in self._inputs.shared}
        found: set[int] = set()
        while True:
            before = len(found)
            for operation in first.operations:
                differs = _is_random(operation) or any(ref.number in differing for ref in operation.refs())
                if differs:
                    found |= {storages[number] for number in operation.written}
                for number in operation.results:
                    if number is not None and (differs or storages[number] in found):
                        differing.add(number)
            differing |= {number for number in storages if storages[number] in found}
            if len(found) == before:
                return found

    # The program --------------------------------------------------------------------------------

    def _emit(self, function: Any, *arguments: Any, **keywords: Any) -> Handle:
        """JointCall a function, and put the call into the program."""
        node = self._graph.call_function(
            function, mapped(arguments, self._node), mapped(keywords, self._node)
        )
        return Handle(node, computed(function, *arguments, **keywords).value)

    def _node(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._constant(value).node
        return value.node if isinstance(value, Handle) else value

    def _placeholder(self, kind: str, name: Any, value: Any, stacked: bool = False) -> Handle:
        if (kind, name) not in self._placeholders:
            with self._graph.inserting_after(self._last_placeholder):
                node = self._last_placeholder = self._graph.placeholder(f"given_{len(self._takes)}")
            self._takes.append((kind, name))
            self._placeholders[kind, name] = Handle(node, value, stacked)
        return self._placeholders[kind, name]

    def _constant(self, tensor: torch.Tensor) -> Handle:
        self._constants.append(tensor)
        return self._placeholder("constant", len(self._constants) - 1, tensor)

    def plan(self) -> PackPlan:
        """The plan of what was added."""
        outputs: list[Any] = []
        stacked: set[int] = set()

        def placed(value: Any) -> Any:
            if not isinstance(value, Ref):
                return value
            held = self._of(value.number)
            if held.one is not None:
                outputs.append(held.one.node)
            elif held.lies_whole and held.whole is not None:
                stacked.add(len(outputs))
                outputs.append(held.whole.node)
            else:
                outputs.append([handle.node for handle in self._each(held)])
            return Ref(len(outputs) - 1)

        result = mapped(_merged([tape.result for tape in self._tapes]), placed)
        self._graph.output(tuple(outputs))
        self._graph.eliminate_dead_code(is_impure_node=_is_kept)
        program = torch.fx.GraphModule({}, self._graph)
        return PackPlan(
            program.forward,
            self._takes,
            self._constants,
            result,
            frozenset(stacked),
            self._count,
            frozenset(self._writes),
            self._reads,
        )

    # Tensors of the tapes -----------------------------------------------------------------------

    def _of(self, number: int) -> _Held:
        if number not in self._held:
            self._held[number] = self._given(number)
        return self._held[number]

    def _given(self, number: int) -> _Held:
        """What comes from outside."""
        names = {tape.given.get(number) for tape in self._tapes}
        (name,) = names if len(names) == 1 else (None,)
        if name is None:
            return self._constants_of(number)
        if name in self._inputs.shared:
            given = self._placeholder("shared", name, self._inputs.shared[name])
            given.moves = name in self._inputs.moving
            return _Held(one=given)
        if name in self._inputs.stacked:
            value = self._inputs.stacked[name].clone()
            return _Held(whole=self._placeholder("stacked", name, value, stacked=True))
        return _Held(
            each=[
                self._placeholder("own", (member, name), own[name].clone())
                for member, own in enumerate(self._inputs.own)
            ]
        )

    def _constants_of(self, number: int) -> _Held:
        if not all(number in tape.constants for tape in self._tapes):
            raise _NotRecordedError("members do not do the same operations")
        if self._tapes[0].storages[number] in self._last_write:
            raise _NotRecordedError("it changes a tensor in place that is no parameter and no buffer")
        values = [tape.constants[number] for tape in self._tapes]
        if all(same_numbers(values[0], value) for value in values):
            return _Held(one=self._constant(values[0]))
        return _Held(each=[self._constant(value) for value in values])

    def _is_written_later(self, number: int, place: int) -> bool:
        return self._last_write.get(self._storages[number], -1) >= place

    @property
    def _storages(self) -> Mapping[int, int]:
        return self._tapes[0].storages

    def _each(self, held: _Held) -> Sequence[Handle]:
        if held.one is not None:
            return [held.one] * self._count
        if held.each is None:
            assert held.whole is not None
            whole = self._emit(torch.unbind, held.whole)
            held.each = [self._emit(_item, whole, member) for member in range(self._count)]
        return held.each

    def _aligned(self, held: _Held) -> Sequence[Handle]:
        """Members' tensors for kernels, which choose by where these begin: a slot within a line is copied."""
        each = self._each(held)
        if held.one is not None or not held.lies_whole:
            return each
        return [
            handle
            if handle.value.data_ptr() % LINE == 0
            else self._emit(_ATEN.clone.default, handle, memory_format=torch.preserve_format)
            for handle in each
        ]

    def _whole(self, number: int, place: int) -> Handle | None:
        """A tensor with a slot for each member; None: there is none."""
        held = self._of(number)
        if held.whole is not None:
            return held.whole
        assert held.each is not None
        first = held.each[0].value
        if any(form_of(handle.value) != form_of(first) for handle in held.each):
            return None
        whole = self._emit(torch.stack, list(held.each))
        if form_of(whole.value[0]) != form_of(first):  # kernels choose by strides
            return None
        whole.stacked = True
        if not self._is_written_later(number, place):
            held.whole = whole
        return whole

    # Operations ---------------------------------------------------------------------------------

    def add(self, place: int) -> None:
        """Put the operations at a place of the tapes into the program."""
        operations = [tape.operations[place] for tape in self._tapes]
        first = operations[0]
        if any(
            other.function is not first.function
            or other.results != first.results
            or other.written != first.written
            for other in operations
        ):
            raise _NotRecordedError("members do not do the same operations")
        arguments = _merged([operation.arguments for operation in operations])
        keywords = _merged([operation.keywords for operation in operations])
        refs = list(refs_in([arguments, keywords]))
        if first.read is not None:
            self._add_read(operations, arguments, keywords)
        else:
            self._check_writes(first)
            differs = (
                _is_random(first)
                or any(self._of(ref.number).one is None for ref in refs)
                or _has_differing([arguments, keywords])
                or any(
                    self._storages[number] in self._differing
                    for number in first.results
                    if number is not None
                )
            )
            if differs:
                self._add_differing(place, first, arguments, keywords, refs)
            else:
                given = [mapped(each, self._one) for each in (arguments, keywords)]
                found = self._results(first, *given)
                if first.function._schema.name.removeprefix("aten::") in VIEWS:
                    moves = any(self._one(ref).moves for ref in refs)
                    for handle in found:
                        if handle is not None:
                            handle.moves = moves
                self._keep(first, [_Held(one=handle) for handle in found])
        for number in [number for number in self._held if self._last_use.get(number, -1) <= place]:
            if number not in self._tapes[0].given:
                del self._held[number]

    def _one(self, value: Any) -> Any:
        return self._of(value.number).one if isinstance(value, Ref) else value

    def _add_read(self, operations: Sequence[Recorded], arguments: Any, keywords: Any) -> None:
        first = operations[0]
        if any(self._of(ref.number).one is None for ref in refs_in([arguments, keywords])) or any(
            other.read != first.read for other in operations
        ):
            raise _NotRecordedError("it reads numbers that members' own tensors decide")
        assert first.read is not None
        self._emit(_check_read, first.function, first.read[0], *mapped(arguments, self._one))
        self._reads = True

    def _check_writes(self, operation: Recorded) -> None:
        for number in operation.written:
            storage = self._storages[number]
            for other, name in self._tapes[0].given.items():
                if self._storages[other] == storage:
                    if name in self._inputs.shared or name in self._inputs.stacked:
                        raise _NotRecordedError(f"it changes {name} in place")
                    self._writes.add(name)

    def _results(self, operation: Recorded, arguments: Any, keywords: Any) -> list[Any]:
        """JointCall the operation, and take its results apart; None for those that are not new."""
        function = _ONLY_WITH_GRADIENTS.get(operation.function, operation.function)
        found = self._emit(function, *arguments, **keywords)
        if not isinstance(found.value, (list, tuple)):
            return [found]
        return [
            None if number is None else self._emit(_item, found, place)
            for place, number in enumerate(operation.results)
        ]

    def _keep(self, operation: Recorded, found: Sequence[Any]) -> None:
        for number, held in zip(operation.results, found, strict=False):
            if number is not None:
                self._held[number] = held
        changed = {self._storages[number] for number in operation.written}
        for number, held in self._held.items() if changed else ():
            if self._storages[number] in changed and not held.lies_whole:
                held.whole = None

    def _add_differing(
        self, place: int, operation: Recorded, arguments: Any, keywords: Any, refs: Sequence[Ref]
    ) -> None:
        is_apart = operation.written or _is_random(operation) or operation.function in _ONLY_WITH_GRADIENTS
        if not is_apart:
            found = self._at_once(place, operation, arguments, keywords, refs)
            if found is not None:
                self._keep(operation, found)
                return
        of_members = [
            self._results(operation, *given) for given in self._of_each(operation, arguments, keywords)
        ]
        self._keep(
            operation,
            [None if each[0] is None else _Held(each=list(each)) for each in zip(*of_members, strict=True)],
        )

    def _of_each(
        self, operation: Recorded, arguments: Any, keywords: Any
    ) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Arguments and keywords of each member."""
        keeps = bool(operation.written) or operation.function._schema.name.removeprefix("aten::") in VIEWS
        for member in range(self._count):

            def own(value: Any, member: int = member) -> Any:
                if isinstance(value, Ref):
                    held = self._of(value.number)
                    return (self._each(held) if keeps else self._aligned(held))[member]
                return value.values[member] if isinstance(value, Differing) else value

            options = mapped(keywords, own)
            if _is_random(operation):
                if not any(each.name == "generator" for each in operation.function._schema.arguments):
                    raise _NotRecordedError(
                        f"it calls {operation.function}, which draws from PyTorch's generator alone"
                    )
                generator = _copied(self._inputs.generators[member])
                options["generator"] = self._placeholder("generator", member, generator)
            yield mapped(arguments, own), options

    def _at_once(
        self, place: int, operation: Recorded, arguments: Any, keywords: Any, refs: Sequence[Ref]
    ) -> list[_Held | None] | None:
        """Results for all members at once, if these have the bits of the members' own operations."""
        name = operation.function._schema.name.removeprefix("aten::")
        if not self._gains(name, refs):
            return None
        is_mutable = any(
            number is not None and self._storages[number] in self._last_write for number in operation.results
        )
        wholes: dict[int, Any] = {}
        for ref in refs:
            held = self._of(ref.number)
            if is_mutable and name in VIEWS and held.one is None and not held.lies_whole:
                return None
            wholes[ref.number] = held.one or self._whole(ref.number, place)
            if wholes[ref.number] is None:
                return None

        def whole(value: Any) -> Any:
            return wholes[value.number] if isinstance(value, Ref) else value

        given, options = mapped(arguments, whole), mapped(keywords, whole)
        form = (operation.function, *form_of_call([arguments, keywords], wholes), is_mutable)
        form_found = self._found.get(form)
        likes = None if form_found is None else form_found.likes
        call = JointCall(operation.function, given, options, self._count, likes)
        if form_found is None:
            form_found = self._rule(call, is_mutable)
            if form_found.is_certain:
                self._found[form] = form_found
        if form_found.is_made:
            made = self._made(operation, call.like)
            return None if made is None else [_Held(whole=made)]
        if form_found.rule is None:
            return None
        if form_found.width:
            return [_Held(each=self._in_groups(form_found.rule, form_found.width, call, wholes))]
        found = form_found.rule(self._emit, call)
        return [None if each is None else _Held(whole=each) for each in found]

    def _in_groups(
        self, rule: JointForm, width: int, call: JointCall, wholes: Mapping[int, Handle]
    ) -> list[Handle]:
        """The results of each member, of a call for every ``width`` of them."""
        found: list[Handle] = []
        for start in range(0, self._count, width):
            stop = min(start + width, self._count)
            parts = {}
            for number, handle in wholes.items():
                held = self._of(number)
                if held.one is None and held.lies_whole:
                    parts[id(handle)] = self._emit(_ATEN.slice.Tensor, handle, 0, start, stop)
                elif held.one is None:
                    parts[id(handle)] = self._emit(torch.stack, list(self._each(held)[start:stop]))
            for part in parts.values():
                part.stacked = True
            (whole,) = rule(self._emit, members_of(call, parts, start, stop))
            each = self._emit(torch.unbind, whole)
            found += [self._emit(_item, each, member) for member in range(stop - start)]
        return found

    def _rule(self, call: JointCall, is_mutable: bool) -> _FoundRule:
        """How a call is done for all members at once; so are others of its form, as kernels do not choose by values."""
        likes = [
            [
                each.new_empty_strided(each.shape, each.stride(), device="meta")
                if isinstance(each, torch.Tensor)
                else each
                for each in like
            ]
            for like in call.likes
        ]
        none = _FoundRule(None, False, likes, True)
        if any(forms_of(like) != forms_of(call.like) for like in call.likes):
            return none
        if call.name not in VIEWS and bytes_of(call) > _MOST_BYTES:
            return self._rule_of_products(call, none)
        if not any(handle.stacked for handle in call.handles()):
            return none._replace(is_made=True)
        # behind zeros, differences would hide
        tells = all(each is None or not each.is_floating_point() or bool(each.any()) for each in call.like)
        for rule in rules_for(call.function):
            if is_exact(rule, call, is_mutable):
                return _FoundRule(rule, False, likes, tells or call.name in VIEWS)
        return none

    def _rule_of_products(self, call: JointCall, none: _FoundRule) -> _FoundRule:
        """How rows of several members are multiplied by one matrix, where memory for all of them is too much."""
        width = min(_MOST_BYTES_OF_PRODUCTS * self._count // bytes_of(call), self._count)
        if call.name not in ("mm", "addmm") or width < 2:
            return none
        ends = {min(width, self._count), self._count % width or width}
        for end in ends:
            parts = {
                id(handle): Handle(None, handle.value[:end], stacked=True)
                for handle in call.handles()
                if handle.stacked
            }
            if not is_exact(product_of_rows, members_of(call, parts, 0, end), False):
                return none
        return none._replace(rule=product_of_rows, width=width, is_certain=bool(call.like[0].any()))

    def _gains(self, name: str, refs: Sequence[Ref]) -> bool:
        """Whether an operation on all members' tensors is worth joining those that lie apart."""
        held = {ref.number: self._of(ref.number) for ref in refs}
        apart = [each for each in held.values() if each.one is None and each.whole is None]
        if not apart:
            return True
        if name in ("mm", "addmm") and any(each.one is not None for each in held.values()):
            return True
        return name not in VIEWS and all(
            handle.value.numel() < _LARGE for each in apart for handle in each.each or ()
        )

    def _made(self, operation: Recorded, like: Sequence[torch.Tensor]) -> Handle | None:
        """Memory with a slot for each member, for what is the same for all as yet."""
        if len(like) != 1 or operation.function not in _FACTORIES:
            return None
        found = self._emit(_slots, self._count, list(like[0].shape), list(like[0].stride()), like[0].dtype)
        fill = _FACTORIES[operation.function]
        found = found if fill is None else self._emit(_ATEN.fill_.Scalar, found, fill)
        found.stacked = True
        return found


_FACTORIES = {
    _ATEN.empty_like.default: None,
    _ATEN.zeros_like.default: 0,
    _ATEN.ones_like.default: 1,
    _ATEN.new_empty.default: None,
    _ATEN.new_zeros.default: 0,
    _ATEN.new_ones.default: 1,
}


# Functions of programs ------------------------------------------------------------------------


def _slots(count: int, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Empty memory with a slot (*shape) for each member."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return torch.empty_strided((count, *shape), (span, *strides), dtype=dtype)


@torch.enable_grad()
def _layer_of_lstm(*given: Any) -> Any:
    """An LSTM's layer, with what its gradients need; without, where gradients are off, whatever ``given`` says."""
    return _ATEN.mkldnn_rnn_layer.default(*given)


_ONLY_WITH_GRADIENTS = {_ATEN.mkldnn_rnn_layer.default: _layer_of_lstm}


def _item(values: Sequence[Any], place: int) -> Any:
    return values[place]


def _check_read(function: Any, expected: Any, *arguments: Any) -> None:
    if function(*arguments) != expected:
        raise _OtherBranchError


def _is_kept(node: Any) -> bool:
    """Whether a call does more than to give a result."""
    schema = getattr(node.target, "_schema", None)
    return (
        node.op in ("placeholder", "output")
        or node.target is _check_read
        or (schema is not None and bool(schema.is_mutable))
    )


def _copied(generator: torch.Generator) -> torch.Generator:
    made = torch.Generator()
    made.set_state(generator.get_state())
    return made


# Tapes ----------------------------------------------------------------------------------------


def _merged(values: Sequence[Any]) -> Any:
    """One value for those of all members, with :class:`Differing` where they differ.

    Raises:
        _NotRecordedError: other tensors are in other places.
    """
    first = values[0]
    if isinstance(first, Ref) or any(isinstance(each, Ref) for each in values):
        if any(each != first or not isinstance(each, Ref) for each in values):
            raise _NotRecordedError("members do not do the same operations")
        return first
    if isinstance(first, dict):
        if any(each.keys() != first.keys() for each in values):
            raise _NotRecordedError("members do not do the same operations")
        return {key: _merged([each[key] for each in values]) for key in first}
    if isinstance(first, (tuple, list)):
        if next(refs_in(first), None) is None and not any(isinstance(each, (tuple, dict)) for each in first):
            return first if all(_equal(each, first) for each in values) else Differing(values)
        if any(not isinstance(each, (tuple, list)) or len(each) != len(first) for each in values):
            raise _NotRecordedError("members do not do the same operations")
        merged = [_merged(items) for items in zip(*values, strict=True)]
        return merged if isinstance(first, list) else tuple(merged)
    return first if all(_equal(each, first) for each in values) else Differing(values)


def _equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _has_differing(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_has_differing, value))
    if isinstance(value, dict):
        return any(map(_has_differing, value.values()))
    return isinstance(value, Differing)


def _is_random(operation: Recorded) -> bool:
    """Whether an operation draws random numbers."""
    function = operation.function
    if torch.Tag.nondeterministic_seeded not in function.tags:
        return False
    for number, argument in enumerate(function._schema.arguments):
        if argument.name == "dropout_p":
            given = operation.arguments[number] if number < len(operation.arguments) else 0.0
            return bool(operation.keywords.get("dropout_p", given))
    return True
