"""`sisctl completion`: what bash and zsh then complete is what sisctl has."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

SISCTL = pathlib.Path("client/cli/sisctl").absolute()


# The scripts call sisctl, as it is typed.
ENVIRONMENT = {**os.environ, "PATH": f"{SISCTL.parent}:{os.environ['PATH']}"}


def output(*command):
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60, env=ENVIRONMENT
    ).stdout


# As bash splits a line: at = and : too.
BASH = r"""
source <("$1" completion bash)
COMP_LINE=$2 COMP_POINT=${#2}
COMP_WORDS=($(sed 's/[=:]/ & /g' <<<"$2"))
[[ $2 != *' ' ]] || COMP_WORDS+=('')
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_sisctl sisctl "${COMP_WORDS[COMP_CWORD]}"
printf '%s\n' "${COMPREPLY[@]}"
"""
# In the place of zsh's own functions, which need its line editor, what they are given is printed.
ZSH = r"""
compdef() { : }
_describe() { printf '%s\n' ${(P)${@[-1]}} }
_files() { print files }
compset() { : }
compadd() { printf '%s\n' ${(P)${@[-1]}} }
source <("$1" completion zsh)
words=(${=2})
[[ $2 != *' ' ]] || words+=('')
CURRENT=$#words
_sisctl
"""


def bash(line):
    return output("bash", "-c", BASH, "bash", str(SISCTL), line).split()


def zsh(line):
    """What is offered, with its description."""
    lines = output("zsh", "-fc", ZSH, "zsh", str(SISCTL), line).splitlines()
    return dict(line.split(":", 1) if ":" in line else (line, "") for line in lines)


def subcommands():
    """Their words, as --help lists them."""
    text = output(SISCTL, "--help")
    listed = re.findall(r"(?m)^  ([a-z]+(?: [a-z]+)*)", text[text.index("Subcommands:") :])
    return [tuple(words.split()) for words in listed]


def options(*words):
    """As --help says them."""
    found = set()
    for line in output(SISCTL, *words, "--help").splitlines():
        if flags := re.match(r" {2,4}(--.*?)(?:  |$)", line):
            found |= set(re.findall(r"--\w+", flags[1]))
    return found


class Completes:
    """What both shells do. `complete` takes a line, and has what may come at its end."""

    def test_every_subcommand_and_every_option(self):
        self.assertGreater(len(subcommands()), 8)
        self.assertEqual({words[0] for words in subcommands()}, set(self.complete("sisctl ")))
        self.assertEqual(set(self.complete("sisctl runs ")), {"list", "get", "create", "delete"})
        of_all = options()
        self.assertEqual(set(self.complete("sisctl --")), of_all)
        for words in subcommands():
            line = f"sisctl {' '.join(words)} --"
            # --version is sisctl's alone, yet it may stand behind a subcommand.
            self.assertEqual(set(self.complete(line)), of_all | options(*words), line)

    def test_choices(self):
        self.assertEqual(set(self.complete("sisctl completion ")), {"bash", "zsh"})
        for line in ("sisctl runs create r --log_prob_encoding ", "sisctl runs create r --log_prob_encoding="):
            self.assertEqual(set(self.complete(line)), {"float32", "float16", "fixed12"})

    def test_values_of_options_and_arguments_are_no_subcommands(self):
        self.assertIn("list", self.complete("sisctl --server runs runs "))
        self.assertIn("--seed", self.complete("sisctl runs create list --"))
        self.assertNotIn("--seed", self.complete("sisctl runs list create --"))
        self.assertIn("step", self.complete("sisctl --server=localhost:50051 "))


class BashTest(Completes, unittest.TestCase):
    def complete(self, line):
        return bash(line)

    def test_only_what_begins_so(self):
        self.assertEqual(bash("sisctl se"), ["sequences"])
        self.assertEqual(bash("sisctl runs create r --log_prob_encoding=fl"), ["float32", "float16"])
        self.assertEqual(bash("sisctl step r 1 --js"), ["--json"])

    def test_elsewhere_bash_completes_files(self):
        self.assertEqual(bash("sisctl compare a"), [])
        self.assertEqual(bash("sisctl show r --tokenizer "), [])
        self.assertIn("-o default", output(SISCTL, "completion", "bash"))


@unittest.skipUnless(shutil.which("zsh"), "needs zsh (tools/setup test)")
class ZshTest(Completes, unittest.TestCase):
    def complete(self, line):
        return zsh(line)

    def test_it_parses(self):
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder, "_sisctl")
            script.write_text(output(SISCTL, "completion", "zsh"))
            subprocess.run(["zsh", "-n", script], check=True, timeout=60)

    def test_words_are_described(self):
        self.assertEqual(zsh("sisctl ")["runs"], "Runs of the service.")
        self.assertEqual(zsh("sisctl runs list --")["--json"], "Print JSON.")

    def test_elsewhere_zsh_completes_files(self):
        for line in ("sisctl compare ", "sisctl show r --tokenizer "):
            self.assertEqual(zsh(line), {"files": ""})


if __name__ == "__main__":
    unittest.main()
