"""The API keeps the naming rules of buf's linter (STANDARD). IMPORT_NO_PUBLIC is left out: ratio_service.proto imports
the other files publicly, so that one import gives all messages."""

import pathlib
import re
import unittest
from typing import Iterable, Iterator

from google.protobuf import descriptor_pb2

DESCRIPTORS = pathlib.Path("proto/sis/v1/ratio_service.binpb").read_bytes()
FILES = list(descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS).file)
SNAKE, PASCAL = "[a-z][a-z0-9]*(_[a-z0-9]+)*", "([A-Z][a-z0-9]*)+"


def messages(parent: Iterable[descriptor_pb2.DescriptorProto]) -> Iterator[descriptor_pb2.DescriptorProto]:
    for message in parent:
        yield message
        yield from messages(message.nested_type)


MESSAGES = [message for file in FILES for message in messages(file.message_type)]
ENUMS = [enum for parent in [*FILES, *MESSAGES] for enum in parent.enum_type]


class ApiNamesTest(unittest.TestCase):
    def test_files_are_in_the_folder_of_their_package(self) -> None:
        for file in FILES:
            self.assertRegex(file.package, r"^[a-z]+(\.[a-z]+)*\.v[1-9]\d*$")
            self.assertRegex(file.name, f"^{file.package.replace('.', '/')}/{SNAKE}\\.proto$")

    def test_messages_and_fields(self) -> None:
        for message in MESSAGES:
            self.assertRegex(message.name, f"^{PASCAL}$")
            for name in [field.name for field in [*message.field, *message.oneof_decl]]:
                self.assertRegex(name.removeprefix("_"), f"^{SNAKE}$", message.name)  # "_": an optional field's oneof.

    def test_enum_values_have_the_enum_as_prefix_and_begin_with_unspecified(self) -> None:
        for enum in ENUMS:
            prefix = re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", enum.name).upper()
            self.assertEqual((enum.value[0].number, enum.value[0].name), (0, f"{prefix}_UNSPECIFIED"))
            self.assertEqual([value.name for value in enum.value if not value.name.startswith(f"{prefix}_")], [])

    def test_each_method_has_a_request_and_a_response_of_its_name(self) -> None:
        for service in (service for file in FILES for service in file.service):
            self.assertRegex(service.name, f"^{PASCAL}Service$")
            for method in service.method:
                self.assertEqual(method.input_type, f".sis.v1.{method.name}Request")
                self.assertEqual(method.output_type, f".sis.v1.{method.name}Response")


if __name__ == "__main__":
    unittest.main()
