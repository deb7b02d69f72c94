from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MaskKey(_message.Message):
    __slots__ = ("certificate", "public", "signature")
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    public: bytes
    signature: bytes
    def __init__(self, certificate: _Optional[bytes] = ..., public: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class MaskKeys(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[MaskKey]
    def __init__(self, keys: _Optional[_Iterable[_Union[MaskKey, _Mapping]]] = ...) -> None: ...
