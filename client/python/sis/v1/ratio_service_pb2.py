"""The messages and enums of the API sis.v1, under the names that protoc would generate.

They are made when this module is imported, from the descriptors of proto/sis/v1 that a build puts
beside it: all in one module, as ratio_service.proto imports the other files publicly. A generated
module runs only with the protobuf that it was generated for and the next major version, and a
trainer has the version that its engine demands.
"""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

if TYPE_CHECKING:
    # The wheel has types of the messages beside this module.
    def __getattr__(name: str) -> Any: ...


# Descriptors as protoc writes them: each file after those that it imports.
_FILES = descriptor_pb2.FileDescriptorSet.FromString(
    pkgutil.get_data(__package__, "ratio_service.binpb") or b""
).file

# A pool of our own: in the default one another copy of the API, of another version perhaps, would
# be an error.
_POOL = descriptor_pool.DescriptorPool()
for _file in _FILES:
    _POOL.AddSerializedFile(_file.SerializeToString())
DESCRIPTOR = _POOL.FindFileByName("sis/v1/ratio_service.proto")

if hasattr(message_factory, "GetMessageClass"):
    _message_class = message_factory.GetMessageClass
else:  # protobuf before 4.22
    _message_class = message_factory.MessageFactory(_POOL).GetPrototype


def _enums(descriptor: Any) -> dict[str, Any]:
    """The enums that a file or message declares, and their values, by name."""
    made: dict[str, Any] = {}
    for name, enum in descriptor.enum_types_by_name.items():
        made[name] = EnumTypeWrapper(enum)
        made.update((value.name, value.number) for value in enum.values)
    return made


def _message(descriptor: Any) -> Any:
    """The class of a message. What is declared inside it are attributes of the class."""
    made = _message_class(descriptor)
    nested = {name: _message(message) for name, message in descriptor.nested_types_by_name.items()}
    for name, value in {**_enums(descriptor), **nested}.items():
        if not hasattr(made, name):
            setattr(made, name, value)
    return made


for _file in _FILES:
    _declared = _POOL.FindFileByName(_file.name)
    globals().update(_enums(_declared))
    globals().update((name, _message(message)) for name, message in _declared.message_types_by_name.items())


def methods() -> dict[str, descriptor_pb2.MethodDescriptorProto]:
    """Those of RatioService, by name."""
    (service,) = (service for file in _FILES for service in file.service)
    return {method.name: method for method in service.method}


def message_named(name: str) -> Any:
    """The class of ".sis.v1.Totals", for one: as descriptors name it."""
    return globals()[name.rpartition(".")[2]]
