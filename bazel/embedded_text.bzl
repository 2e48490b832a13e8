"""Text files as C++ strings, for programs that write self-contained files."""

def embedded_text(name, files, **kwargs):
    """A library with the header NAME.h, which has a `const char[]` per file.

    Args:
      name: of the library.
      files: name of the constant to label of the file. No file may hold `)EMBEDDED"`.
      **kwargs: of the library.
    """
    lines = [
        "printf '\\ninline constexpr char %s[] = R\"EMBEDDED('; cat $(location %s); printf ')EMBEDDED\";\\n'" %
        (constant, file)
        for constant, file in files.items()
    ]
    native.genrule(
        name = name + "_header",
        srcs = files.values(),
        outs = [name + ".h"],
        cmd = "{ printf '#pragma once\\n\\nnamespace sis {\\n'; " + "; ".join(lines) +
              "; printf '\\n}  // namespace sis\\n'; } > $@",
    )
    native.cc_library(
        name = name,
        hdrs = [name + ".h"],
        **kwargs
    )
