// Files exchanged with the Python package safetensors, in both directions.
#include "files/safetensors.h"
#include "files/safetensors_writer.h"
#include "run_python.h"

namespace ullage::files {
namespace {

using testsupport::RunPython;
using testsupport::Scratch;

TEST(PythonRoundTrip, PythonReadsWhatWeWrite) {
  Scratch scratch;
  PosixFileSystem fs;
  SafetensorsWriter writer(fs, scratch / "ours.safetensors",
                           {{"f64", ElementType::kF64, {2}},
                            {"i64", ElementType::kI64, {1, 2}},
                            {"f32", ElementType::kF32, {2, 1}},
                            {"i32", ElementType::kI32, {}},
                            {"f16", ElementType::kF16, {1}},
                            {"bf16", ElementType::kBF16, {2}},
                            {"none", ElementType::kF32, {3, 0}},
                            {"u8 \"\xc3\xa9\"", ElementType::kU8, {3}},
                            {"bool", ElementType::kBool, {2}}},
                           {{"format", "pt"}, {"note", "quote \" and \xc3\xa9"}});
  const double f64[] = {0.5, -2};
  const std::int64_t i64[] = {1LL << 40, -7};
  const float f32[] = {1.25f, -3};
  const std::int32_t i32 = -9;
  const std::uint16_t f16 = 0x3c00, bf16[] = {0x3f80, 0xc000};
  const unsigned char u8[] = {1, 2, 255}, flags[] = {1, 0};
  writer.Append(f64, sizeof f64);
  writer.Append(i64, sizeof i64);
  writer.Append(f32, sizeof f32);
  writer.Append(&i32, sizeof i32);
  writer.Append(&f16, sizeof f16);
  writer.Append(bf16, sizeof bf16);
  writer.Append(u8, sizeof u8);
  writer.Append(flags, sizeof flags);
  writer.Finish();
  RunPython(scratch, R"(
import safetensors
with safetensors.safe_open("ours.safetensors", "np") as f:
    assert f.metadata() == {"format": "pt", "note": 'quote " and \u00e9'}, f.metadata()
    assert len(list(f.keys())) == 9
    get = lambda name: (str(f.get_tensor(name).dtype), f.get_tensor(name).tolist())
    assert get("f64") == ("float64", [0.5, -2.0]), get("f64")
    assert get("i64") == ("int64", [[1 << 40, -7]]), get("i64")
    assert get("f32") == ("float32", [[1.25], [-3.0]]), get("f32")
    assert get("i32") == ("int32", -9), get("i32")
    assert get("f16") == ("float16", [1.0]), get("f16")
    assert f.get_slice("bf16").get_dtype() == "BF16" and f.get_slice("bf16").get_shape() == [2]
    assert f.get_tensor("none").shape == (3, 0)
    assert get('u8 "\u00e9"') == ("uint8", [1, 2, 255])
    assert get("bool") == ("bool", [True, False])
)");
}

TEST(PythonRoundTrip, WeReadWhatPythonWrites) {
  Scratch scratch;
  RunPython(scratch, R"(
import numpy as np, safetensors.numpy as st
st.save_file({"z": np.arange(6, dtype=np.float32).reshape(2, 3) / 4,
              "a": np.array([-1, 2], dtype=np.int16),
              "scalar": np.array(2.5, dtype=np.float64),
              "none": np.zeros((0, 5), dtype=np.int32)}, "theirs.safetensors", {"by": "python"})
)");
  PosixFileSystem fs;
  const auto file = SafetensorsFile::Open(fs, scratch / "theirs.safetensors");
  EXPECT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file.metadata().at("by"), "python");
  float z[2] = {};
  file.Read("z", 4, 2, z);
  EXPECT_EQ(z[0], 1.0f);
  EXPECT_EQ(z[1], 1.25f);
  std::int16_t a[2] = {};
  file.Read("a", 0, 2, a);
  EXPECT_EQ(a[0], -1);
  double scalar = 0;
  file.Read("scalar", 0, 1, &scalar);
  EXPECT_EQ(scalar, 2.5);
  EXPECT_EQ(FormatShape(file.Get("none").shape), "[0, 5]");
}

}  // namespace
}  // namespace ullage::files
