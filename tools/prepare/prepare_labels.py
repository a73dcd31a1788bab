"""Numbers the labels of a classification file."""
import array
import math
import re

from prepare_rows import InputError

IGNORED_LABEL = -100
MAX_LABEL = 1_000_000  # more classes than any classifier has: the column is no label


class Labels:
    """Collects labels; their numbers are known only when all have been seen."""

    def __init__(self, threshold):
        self.threshold = threshold
        self.codes = array.array("q")  # one a record: a final label, or an index into `values`
        self.values = {}  # distinct text -> index, in order of appearance
        self.lines = []  # the line each distinct text was first seen in

    def add(self, path, number, text):
        if self.threshold is None:
            text = text.strip()
            if not text:
                raise InputError(f"{path}, line {number}: the label is empty")
            if text not in self.values:
                self.values[text] = len(self.values)
                self.lines.append(number)
            self.codes.append(self.values[text])
            return
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InputError(f"{path}, line {number}: label '{text[:40]}' is no number, "
                             "as --label-threshold needs")
        self.codes.append(int(value > self.threshold))

    def finish(self, path):
        """(labels by record, num_labels, names)."""
        if self.threshold is not None:
            return self.codes, 2, [f"<= {self.threshold:g}", f"> {self.threshold:g}"]
        if all(re.fullmatch(r"[+-]?\d+", text) for text in self.values):
            final = [int(text) for text in self.values]
            for value, line in zip(final, self.lines):
                if value != IGNORED_LABEL and not 0 <= value < MAX_LABEL:
                    raise InputError(f"{path}, line {line}: label {value} is not in 0 .. "
                                     f"{MAX_LABEL - 1} (or {IGNORED_LABEL}: counts nowhere); for a "
                                     "rating use --label-threshold")
            names, count = [], max([0, *final]) + 1
        else:
            names = sorted(self.values)
            place = {text: index for index, text in enumerate(names)}
            final, count = [place[text] for text in self.values], len(names)
            if count > MAX_LABEL:
                raise InputError(f"{path}: {count} different labels; the column is no label")
        for record, code in enumerate(self.codes):
            self.codes[record] = final[code]
        return self.codes, count, names
