from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Request(_message.Message):
    __slots__ = ("federation", "round", "phase", "base", "expected")
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    federation: bytes
    round: int
    phase: int
    base: bytes
    expected: bytes
    def __init__(self, federation: _Optional[bytes] = ..., round: _Optional[int] = ..., phase: _Optional[int] = ..., base: _Optional[bytes] = ..., expected: _Optional[bytes] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("federation", "round", "phase", "sender", "layout", "size", "pieces")
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    federation: bytes
    round: int
    phase: int
    sender: str
    layout: str
    size: int
    pieces: _containers.RepeatedCompositeFieldContainer[Piece]
    def __init__(self, federation: _Optional[bytes] = ..., round: _Optional[int] = ..., phase: _Optional[int] = ..., sender: _Optional[str] = ..., layout: _Optional[str] = ..., size: _Optional[int] = ..., pieces: _Optional[_Iterable[_Union[Piece, _Mapping]]] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("codec", "leaves", "key")
    CODEC_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    codec: int
    leaves: int
    key: bytes
    def __init__(self, codec: _Optional[int] = ..., leaves: _Optional[int] = ..., key: _Optional[bytes] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: Header
    data: bytes
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Pushed(_message.Message):
    __slots__ = ("federation", "round", "phase", "layout", "data", "packed", "ping", "pong")
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    PACKED_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    federation: bytes
    round: int
    phase: int
    layout: str
    data: bytes
    packed: bytes
    ping: int
    pong: int
    def __init__(self, federation: _Optional[bytes] = ..., round: _Optional[int] = ..., phase: _Optional[int] = ..., layout: _Optional[str] = ..., data: _Optional[bytes] = ..., packed: _Optional[bytes] = ..., ping: _Optional[int] = ..., pong: _Optional[int] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("federation", "round", "bytes_sent", "bytes_received", "waiting_for", "rows", "first", "round_bytes", "whole_bytes", "start_server_bytes", "start_gossip_bytes", "columns", "trouble", "leaves", "samples", "model_part", "times", "named")
    class TimesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class NamedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    ROUND_BYTES_FIELD_NUMBER: _ClassVar[int]
    WHOLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    START_SERVER_BYTES_FIELD_NUMBER: _ClassVar[int]
    START_GOSSIP_BYTES_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    MODEL_PART_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    NAMED_FIELD_NUMBER: _ClassVar[int]
    federation: bytes
    round: int
    bytes_sent: int
    bytes_received: int
    waiting_for: str
    rows: _containers.RepeatedCompositeFieldContainer[Row]
    first: int
    round_bytes: _containers.RepeatedScalarFieldContainer[int]
    whole_bytes: _containers.RepeatedScalarFieldContainer[int]
    start_server_bytes: _containers.RepeatedScalarFieldContainer[int]
    start_gossip_bytes: _containers.RepeatedScalarFieldContainer[int]
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    trouble: str
    leaves: _containers.RepeatedScalarFieldContainer[str]
    samples: int
    model_part: _containers.RepeatedScalarFieldContainer[int]
    times: _containers.ScalarMap[str, float]
    named: _containers.ScalarMap[str, float]
    def __init__(self, federation: _Optional[bytes] = ..., round: _Optional[int] = ..., bytes_sent: _Optional[int] = ..., bytes_received: _Optional[int] = ..., waiting_for: _Optional[str] = ..., rows: _Optional[_Iterable[_Union[Row, _Mapping]]] = ..., first: _Optional[int] = ..., round_bytes: _Optional[_Iterable[int]] = ..., whole_bytes: _Optional[_Iterable[int]] = ..., start_server_bytes: _Optional[_Iterable[int]] = ..., start_gossip_bytes: _Optional[_Iterable[int]] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., trouble: _Optional[str] = ..., leaves: _Optional[_Iterable[str]] = ..., samples: _Optional[int] = ..., model_part: _Optional[_Iterable[int]] = ..., times: _Optional[_Mapping[str, float]] = ..., named: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("name", "rising", "title", "log", "unit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RISING_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    rising: bool
    title: str
    log: bool
    unit: str
    def __init__(self, name: _Optional[str] = ..., rising: _Optional[bool] = ..., title: _Optional[str] = ..., log: _Optional[bool] = ..., unit: _Optional[str] = ...) -> None: ...

class Row(_message.Message):
    __slots__ = ("round", "values")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ROUND_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    round: int
    values: _containers.ScalarMap[str, float]
    def __init__(self, round: _Optional[int] = ..., values: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("rows", "troubles", "mean_samples", "missing", "held_by", "held_why", "lacks", "news")
    class TroublesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TROUBLES_FIELD_NUMBER: _ClassVar[int]
    MEAN_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    HELD_BY_FIELD_NUMBER: _ClassVar[int]
    HELD_WHY_FIELD_NUMBER: _ClassVar[int]
    LACKS_FIELD_NUMBER: _ClassVar[int]
    NEWS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    troubles: _containers.ScalarMap[str, str]
    mean_samples: float
    missing: str
    held_by: str
    held_why: str
    lacks: bool
    news: bool
    def __init__(self, rows: _Optional[int] = ..., troubles: _Optional[_Mapping[str, str]] = ..., mean_samples: _Optional[float] = ..., missing: _Optional[str] = ..., held_by: _Optional[str] = ..., held_why: _Optional[str] = ..., lacks: _Optional[bool] = ..., news: _Optional[bool] = ...) -> None: ...

class Question(_message.Message):
    __slots__ = ("federation",)
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    federation: bytes
    def __init__(self, federation: _Optional[bytes] = ...) -> None: ...

class Overview(_message.Message):
    __slots__ = ("federation_name", "rounds", "agents", "held_by", "held_why")
    FEDERATION_NAME_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    HELD_BY_FIELD_NUMBER: _ClassVar[int]
    HELD_WHY_FIELD_NUMBER: _ClassVar[int]
    federation_name: str
    rounds: int
    agents: _containers.RepeatedCompositeFieldContainer[Standing]
    held_by: str
    held_why: str
    def __init__(self, federation_name: _Optional[str] = ..., rounds: _Optional[int] = ..., agents: _Optional[_Iterable[_Union[Standing, _Mapping]]] = ..., held_by: _Optional[str] = ..., held_why: _Optional[str] = ...) -> None: ...

class Standing(_message.Message):
    __slots__ = ("name", "round", "bytes_sent", "bytes_received", "last_contact", "waiting_for", "loss", "trouble", "samples", "times")
    class TimesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    LAST_CONTACT_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    name: str
    round: int
    bytes_sent: int
    bytes_received: int
    last_contact: float
    waiting_for: str
    loss: float
    trouble: str
    samples: int
    times: _containers.ScalarMap[str, float]
    def __init__(self, name: _Optional[str] = ..., round: _Optional[int] = ..., bytes_sent: _Optional[int] = ..., bytes_received: _Optional[int] = ..., last_contact: _Optional[float] = ..., waiting_for: _Optional[str] = ..., loss: _Optional[float] = ..., trouble: _Optional[str] = ..., samples: _Optional[int] = ..., times: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("known", "past", "done", "ready", "plan", "seconds", "waits_for", "leaving")
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    PAST_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    known: int
    past: bytes
    done: int
    ready: bool
    plan: str
    seconds: float
    waits_for: str
    leaving: bool
    def __init__(self, known: _Optional[int] = ..., past: _Optional[bytes] = ..., done: _Optional[int] = ..., ready: _Optional[bool] = ..., plan: _Optional[str] = ..., seconds: _Optional[float] = ..., waits_for: _Optional[str] = ..., leaving: _Optional[bool] = ...) -> None: ...

class Rolls(_message.Message):
    __slots__ = ("rolls", "signature")
    ROLLS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    rolls: _containers.RepeatedCompositeFieldContainer[RollCalled]
    signature: bytes
    def __init__(self, rolls: _Optional[_Iterable[_Union[RollCalled, _Mapping]]] = ..., signature: _Optional[bytes] = ...) -> None: ...

class RollCalled(_message.Message):
    __slots__ = ("round", "attempt", "plan", "present", "expelled")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    EXPELLED_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempt: int
    plan: str
    present: _containers.RepeatedScalarFieldContainer[int]
    expelled: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, round: _Optional[int] = ..., attempt: _Optional[int] = ..., plan: _Optional[str] = ..., present: _Optional[_Iterable[int]] = ..., expelled: _Optional[_Iterable[int]] = ...) -> None: ...
