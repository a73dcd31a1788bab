#!/usr/bin/env python3
"""Counts what scripts/test.sh ran, prints 'N passed, N failed', and exits with 1 on any failure.

The folder holds ctest.xml, pytest.xml and python.xml (JUnit form), NAME.passed or NAME.failed for
each check, and ctest.failed and so on where the runner itself said so. A ctest entry is one binary
with many tests: they are counted one by one from GoogleTest's lines.
"""
import pathlib
import re
import sys
import xml.etree.ElementTree as ET

RUNNERS = ("ctest", "pytest", "python")
RESULT = re.compile(r"^\[\s+(OK|FAILED)\s+\] (\S+?),? .*\(\d+ ms\)$", re.M)


def count_case(case):
    """(passed, failed) of one <testcase>. An entry that failed counts at least one failure."""
    failed = {name for state, name in RESULT.findall(case.findtext("system-out") or "")
              if state == "FAILED"}
    passed = {name for state, name in RESULT.findall(case.findtext("system-out") or "")
              if state == "OK"} - failed
    ok = not any(case.find(tag) is not None for tag in ("failure", "error", "skipped")) and \
        case.get("status", "run") == "run"
    if ok:
        return (len(passed) or 1), len(failed)
    return len(passed), (len(failed) or 1)


def count(folder):
    passed = len(list(folder.glob("*.passed")))
    failed = 0
    for runner in RUNNERS:
        report = folder / f"{runner}.xml"
        counts = [count_case(case) for case in ET.parse(report).iter("testcase")] \
            if report.exists() else []
        passed += sum(ok for ok, _ in counts)
        bad = sum(wrong for _, wrong in counts)
        # The runner's own word weighs: it fails too when nothing ran, or when it crashed.
        said_so = (folder / f"{runner}.failed").exists()
        failed += bad or int(said_so or not counts)
    failed += sum(path.stem not in RUNNERS for path in folder.glob("*.failed"))
    return passed, failed


def main():
    passed, failed = count(pathlib.Path(sys.argv[1]))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
