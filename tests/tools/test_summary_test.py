"""scripts/test_summary.py counts every kind of result, and never calls a failure a success."""
import pathlib
import subprocess
import sys

SUMMARY = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "test_summary.py"
TWO_PASSED = """[       OK ] Bytes.Parse (0 ms)
[       OK ] Each/B.C/0, where GetParam() = 3 (12 ms)
"""


def summary(folder, ctest, pytest='<testcase name="p"/>', python='<testcase name="q"/>', touch=()):
    (folder / "ctest.xml").write_text(f"<testsuite>{ctest}</testsuite>")
    (folder / "pytest.xml").write_text(f"<testsuites><testsuite>{pytest}</testsuite></testsuites>")
    (folder / "python.xml").write_text(f"<testsuites><testsuite>{python}</testsuite></testsuites>")
    for name in touch:
        (folder / name).touch()
    done = subprocess.run([sys.executable, SUMMARY, folder], capture_output=True, text=True)
    return done.returncode, done.stdout


def entry(output, status="run", inside=""):
    return (f'<testcase name="base" status="{status}">{inside}'
            f"<system-out>{output}</system-out></testcase>")


def test_counts_the_tests_inside_a_binary_and_the_checks(tmp_path):
    assert summary(tmp_path, entry(TWO_PASSED), touch=["style.passed"]) == (
        0, "5 passed, 0 failed\n")


def test_counts_a_failed_test_once_though_its_rank_failed_too(tmp_path):
    failed = """[  FAILED  ] A.B (3 ms)
[  FAILED  ] A.B (7 ms)
[  FAILED  ] 1 test, listed below:
"""
    assert summary(tmp_path, entry(TWO_PASSED + failed, "fail", "<failure/>")) == (
        1, "4 passed, 1 failed\n")


def test_a_crash_without_a_failed_line_is_a_failure(tmp_path):
    assert summary(tmp_path, entry(TWO_PASSED, "fail", "<failure/>")) == (1, "4 passed, 1 failed\n")


def test_a_binary_that_was_not_run_is_a_failure(tmp_path):
    assert summary(tmp_path, entry("", "notrun", "<skipped/>")) == (1, "2 passed, 1 failed\n")


def test_an_empty_report_is_a_failure(tmp_path):
    assert summary(tmp_path, entry(TWO_PASSED), pytest="") == (1, "3 passed, 1 failed\n")
    assert summary(tmp_path, entry(TWO_PASSED), python="") == (1, "3 passed, 1 failed\n")


def test_a_failed_check_and_a_runner_that_crashed_are_failures(tmp_path):
    assert summary(tmp_path, entry(TWO_PASSED), touch=["shell.failed", "ctest.failed"]) == (
        1, "4 passed, 2 failed\n")
