"""Tests of movie_reviews.py over an archive of the same form as the real one."""
import contextlib
import io
import pathlib
import sys
import tarfile
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools/prepare"))
import movie_reviews  # noqa: E402


def tar_of(name, data):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        item = tarfile.TarInfo(name)
        item.size = len(data)
        archive.addfile(item, io.BytesIO(data))
    return buffer.getvalue()


class MovieReviewsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        self.out = self.dir / "reviews.tsv"

    def run_over(self, lines, inner="additional_resources/hutto_ICWSM_2014.tar.gz"):
        data = tar_of("hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt", b"\r\n".join(lines))
        (self.dir / "archive.tar.gz").write_bytes(tar_of("vaderSentiment-2.5/" + inner, data))
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            movie_reviews.main([str(self.dir / "archive.tar.gz"), str(self.out)])
        return printed.getvalue()

    def lines(self):
        return [f"{i}\t{[-1.5, 0, 0.01][i % 3]}\tText {i}".encode() for i in range(1, 10_606)]

    def test_labels_are_rating_above_zero(self):
        printed = self.run_over(self.lines())
        rows = self.out.read_text().splitlines()
        self.assertEqual(rows[:4], ["id\tlabel\ttext", "1\t0\tText 1", "2\t1\tText 2", "3\t0\tText 3"])
        self.assertEqual(len(rows), 10_606)
        self.assertIn("10605 reviews, 3535 positive, 7070 not; 0 lines were not UTF-8", printed)

    def test_lines_that_are_not_utf8_are_windows_1252(self):
        lines = self.lines()
        lines[0] = "1\t1\tcaf\u00e9".encode()
        lines[1] = b"2\t1\tcaf\xe9 \x93so\x94"
        self.assertIn("1 lines were not UTF-8", self.run_over(lines))
        rows = self.out.read_text(encoding="utf-8").split("\n")
        self.assertEqual(rows[1:3], ["1\t1\tcaf\u00e9", "2\t1\tcaf\u00e9 \u201cso\u201d"])

    def refusal(self, *arguments):
        with self.assertRaises(SystemExit) as caught:
            self.run_over(*arguments)
        self.assertFalse(self.out.exists())
        return caught.exception.code

    def test_another_archive_is_refused(self):
        self.assertIn("has 10604 reviews, expected 10605", self.refusal(self.lines()[1:]))
        self.assertIn("line 2: expected id", self.refusal([self.lines()[0], b"x\t1\ty"]))
        self.assertIn("line 2: expected id", self.refusal([self.lines()[0], self.lines()[0]]))
        self.assertIn("line 1: expected id", self.refusal([b"1\tnan\ttext"]))
        self.assertIn("holds 0 files", self.refusal(self.lines(), "other.tar.gz"))
        (self.dir / "bad").write_bytes(b"no archive")
        with self.assertRaises(SystemExit) as caught:
            movie_reviews.main([str(self.dir / "bad"), str(self.out)])
        self.assertIn("get the source archive", caught.exception.code)


if __name__ == "__main__":
    unittest.main()
