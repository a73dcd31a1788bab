"""Writes the seeds of the fuzz targets: small valid files of every kind.

    python make_seeds.py tests/fuzz/seeds
"""
import collections
import pathlib
import sys
import zipfile

import torch
from safetensors.torch import save


class Address:
    """Stands for a class that the reader does not know."""

    def __init__(self):
        self.numel, self.start = 3, 1


def pickle_of(value, folder, protocol=2):
    """The data.pkl of what torch.save writes for `value`."""
    path = folder / "t.pt"
    torch.save(value, path, pickle_protocol=protocol)
    with zipfile.ZipFile(path) as archive:
        pickle = archive.read("t/data.pkl")
    path.unlink()
    return pickle


def main():
    folders = {name: pathlib.Path(sys.argv[1]) / name
               for name in ("safetensors", "token_file", "zip_archive", "torch_file", "deepspeed")}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)

    tensors = {"a": torch.arange(3.0), "b": torch.zeros(2, 0), "c": torch.ones(1).bfloat16()}
    (folders["safetensors"] / "three").write_bytes(save(tensors, {"format": "pt"}))

    about = {"format": "ullage-tokens", "version": "1", "tokenizer": "t", "tokenizer_sha256": "0",
             "pad_token_id": "0"}
    ids = torch.arange(4, dtype=torch.int32)
    offsets = torch.tensor([0, 1, 4])
    tokens = folders["token_file"]
    (tokens / "causal").write_bytes(
        save({"input_ids": ids, "offsets": offsets}, about | {"task": "causal"}))
    (tokens / "instruct").write_bytes(
        save({"input_ids": ids, "offsets": offsets, "labels": ids - 1}, about | {"task": "instruct"}))
    (tokens / "classes").write_bytes(
        save({"input_ids": ids, "offsets": offsets, "labels": torch.tensor([0, 1])},
             about | {"num_labels": "2", "label_names": '["x","y"]'}))

    value = {"w": torch.arange(6.0).view(2, 3).t(), "o": collections.OrderedDict(x=[1, 2.5, None]),
             "s": torch.Size([1, 2]), "d": torch.float16, "k": Address(), "n": {1 << 70, -3}}
    files = folders["torch_file"]
    torch.serialization.set_crc32_options(False)  # so that damage reaches what is behind the sums
    torch.save(value, files / "zip")
    torch.serialization.set_crc32_options(True)
    torch.save(value, files / "before_zip", _use_new_zipfile_serialization=False)
    for protocol in (2, 4, 5):
        (files / f"pickle{protocol}").write_bytes(pickle_of(value, files, protocol))
    torch.save({"a": torch.ones(2)}, folders["zip_archive"] / "torch")
    with zipfile.ZipFile(folders["zip_archive"] / "python", "w") as archive:
        archive.writestr("a/b", "text")
        archive.writestr("a/c", "text" * 9, zipfile.ZIP_DEFLATED)

    model = {"module": {"w": torch.ones(5), "table": torch.ones(2)}, "buffer_names": ["table"],
             "param_shapes": [collections.OrderedDict(w=torch.Size([5]))], "global_steps": 3,
             "frozen_param_shapes": {"f": torch.Size([3])}, "shared_params": {"x": "w"},
             "frozen_param_fragments": {"f": torch.ones(2)}, "mp_world_size": 1}
    flat = torch.ones(8)
    state = {"exp_avg": flat[:3], "exp_avg_sq": flat[3:6], "step": 3}
    flat_groups = {"optimizer_state_dict": {
        "zero_stage": 2, "partition_count": [2], "single_partition_of_fp32_groups": [flat[:3]],
        "base_optimizer_state": {"state": {0: state}}, "param_alignment_paddings": [[0]]}}
    chunks = {"optimizer_state_dict": {
        "zero_stage": 3, "partition_count": 2, "fp32_flat_groups": [flat[:3]],
        "optimizer_state_dict": {"state": {0: state}}}}
    stage0 = model | {"param_shapes": None, "optimizer": {
        "state": {0: {"exp_avg": torch.ones(5), "step": 2}}, "param_groups": [{"params": [0]}]}}
    folder = folders["deepspeed"]
    for name, first, pickles in (("flat", 1, (model, flat_groups)), ("chunks", 1, (model, chunks)),
                                 ("universal", 6, (model, {"param": torch.ones(5), "zero_stage": 3})),
                                 ("stage0", 0, (stage0, {}))):
        (folder / name).write_bytes(
            bytes([first]) + b"".join(pickle_of(value, folder) for value in pickles))


if __name__ == "__main__":
    main()
