"""What callers of a released version rely on is in today's API: names, numbers, types, bytes.

`released/` has the API of each version. That of the version at hand is today's: what is added has its line
there, until the version is released. Then none of it changes, none goes, and additions belong to the next.
"""

import pathlib
import random
import re
import struct
import unittest
from typing import Any, Dict, Iterator, Tuple

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

FOLDER = pathlib.Path(__file__).absolute().parent
DEPTH = 4

Declarations = Dict[str, Tuple[Any, ...]]


def read_set(path: pathlib.Path) -> descriptor_pb2.FileDescriptorSet:
    return descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())


def declared_in_enum(prefix: str, enum: descriptor_pb2.EnumDescriptorProto) -> Iterator[Tuple[str, Tuple]]:
    yield f"{prefix}.{enum.name}", ("enum",)
    for value in enum.value:
        yield f"{prefix}.{enum.name}.{value.name}", ("value", value.number)


def declared_in_message(prefix: str, message: descriptor_pb2.DescriptorProto) -> Iterator[Tuple[str, Tuple]]:
    name = f"{prefix}.{message.name}"
    yield name, ("message",)
    for field in message.field:
        oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else None
        yield f"{name}.{field.name}", (
            *("field", field.number, field.type, field.type_name, field.label),
            *(field.json_name, field.proto3_optional, oneof),
        )
    for enum in message.enum_type:
        yield from declared_in_enum(name, enum)
    for nested in message.nested_type:
        yield from declared_in_message(name, nested)


def declarations(files: descriptor_pb2.FileDescriptorSet) -> Declarations:
    """What each name stands for: of every message, field, enum, value, service and method.

    Two fields of a message can't have one number. So where all that were released are as they were,
    none of their numbers has another meaning.
    """
    made: Declarations = {}
    for file in files.file:
        for message in file.message_type:
            made.update(declared_in_message(file.package, message))
        for enum in file.enum_type:
            made.update(declared_in_enum(file.package, enum))
        for service in file.service:
            made[f"{file.package}.{service.name}"] = ("service",)
            for method in service.method:
                made[f"{file.package}.{service.name}.{method.name}"] = (
                    *("method", method.input_type, method.output_type),
                    *(method.client_streaming, method.server_streaming),
                )
    return made


def classes(files: descriptor_pb2.FileDescriptorSet) -> Dict[str, Any]:
    """A class for every message, by full name, in a pool of their own."""
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    if hasattr(message_factory, "GetMessageClass"):
        make = message_factory.GetMessageClass
    else:  # protobuf before 4.22
        make = message_factory.MessageFactory(pool).GetPrototype
    names = (name for name, declared in declarations(files).items() if declared == ("message",))
    return {name: make(pool.FindMessageTypeByName(name)) for name in names}


def random_value(field: FieldDescriptor, rng: random.Random) -> Any:
    """Never the default, which isn't sent."""
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return True
    if kind == FieldDescriptor.CPPTYPE_STRING:
        text = "".join(rng.choices("abcé", k=rng.randint(1, 9)))
        return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
    if kind == FieldDescriptor.CPPTYPE_FLOAT:
        return struct.unpack("<f", struct.pack("<f", rng.uniform(1, 9)))[0]
    if kind == FieldDescriptor.CPPTYPE_DOUBLE:
        return rng.uniform(-9, -1)
    bits = 31 if kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32) else 63
    return rng.randrange(1, 2 ** rng.randint(1, bits))


def fill(message: Message, rng: random.Random, depth: int = 0) -> None:
    """Every field, and of a oneof a random one."""
    fields = list(message.DESCRIPTOR.fields)
    rng.shuffle(fields)
    for field in fields:
        repeated = field.label == FieldDescriptor.LABEL_REPEATED
        if field.message_type is None:
            if repeated:
                getattr(message, field.name).extend(random_value(field, rng) for _ in range(3))
            else:
                setattr(message, field.name, random_value(field, rng))
        elif depth < DEPTH:
            inner = getattr(message, field.name)
            for part in [inner.add(), inner.add()] if repeated else [inner]:
                part.SetInParent()
                fill(part, rng, depth + 1)


class CompatibilityTest(unittest.TestCase):
    today = read_set(FOLDER / "sis/v1/ratio_service.binpb")
    releases = {path.stem: read_set(path) for path in sorted((FOLDER / "released").glob("*.binpb"))}

    def test_the_file_of_this_version_is_todays_api(self) -> None:
        [version] = re.findall(r'kVersion\[\] = "(.*)"', (FOLDER / "version.h").read_text())
        self.assertIn(version, self.releases, "proto/released, or proto/BUILD, has no file of this version")
        self.assertEqual(declarations(self.today), declarations(self.releases[version]))

    def test_what_was_released_is_as_it_was(self) -> None:
        today = declarations(self.today)
        for release, files in self.releases.items():
            with self.subTest(release=release):
                released = declarations(files)
                self.assertGreater(len(released), 400)
                changed = {name: today.get(name) for name in released if today.get(name) != released[name]}
                self.assertEqual(changed, {})

    def test_messages_of_a_release_are_read_as_they_were_meant(self) -> None:
        today = classes(self.today)
        rng = random.Random(29)
        for release, files in self.releases.items():
            for name, released in classes(files).items():
                with self.subTest(release=release, message=name):
                    for _ in range(10):
                        sent = released()
                        fill(sent, rng)
                        read = today[name].FromString(sent.SerializeToString())
                        self.assertEqual(json_format.MessageToJson(read), json_format.MessageToJson(sent))
                        self.assertEqual(read.SerializeToString(), sent.SerializeToString())


if __name__ == "__main__":
    unittest.main()
