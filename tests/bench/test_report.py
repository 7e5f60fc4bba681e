from __future__ import annotations

import json
import os
import subprocess
import sys

from workbench.bench.command_line import reserved_stdout
from workbench.bench.report import ROOT, Report, describe_environment


def test_report_json_is_one_object_with_the_three_agreed_keys():
    report = Report({"output_tok_per_s": 12.5}, {"requests": 1}, {"cores": 2})

    assert json.loads(report.to_json()) == {
        "figures": {"output_tok_per_s": 12.5},
        "settings": {"requests": 1},
        "environment": {"cores": 2},
    }


def test_environment_says_on_what_was_measured():
    environment = describe_environment()

    assert environment["cores"] == os.cpu_count()
    assert environment["torch"].startswith("2.13.0")
    assert environment["cpu"] != ""
    assert {"memory_bytes", "python", "numba", "transformers", "commit", "date"} <= environment.keys()


def test_reserved_stdout_sends_everything_else_to_stderr():
    script = """
import os
from workbench.bench.command_line import reserved_stdout
with reserved_stdout() as out:
    print("printed by Python")
    os.write(1, b"written by C\\n")
    out.write("the object\\n")
print("after")
"""
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert ran.stdout == "the object\nafter\n"
    assert sorted(ran.stderr.splitlines()) == ["printed by Python", "written by C"]


def test_reserved_stdout_is_given_back_after_an_error(capfd):
    try:
        with reserved_stdout():
            raise ValueError
    except ValueError:
        os.write(1, b"visible")

    assert capfd.readouterr().out == "visible"


def test_bench_refuses_an_unknown_engine_setting_with_status_2():
    command = [sys.executable, "-m", "workbench.bench", "throughput", "--engine", "blok_size=8", "--json"]

    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert (ran.returncode, ran.stdout) == (2, "")
    assert "unknown engine setting 'blok_size'" in ran.stderr
