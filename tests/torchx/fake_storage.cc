#include "torchx/fake_storage.h"

#include <ATen/CPUGeneratorImpl.h>

#include <cstdlib>
#include <cstring>

#include "torchx/storage.h"
#include "ullage/error.h"

namespace ullage::torchx {
namespace {

std::mutex count_mutex;
int present = 0;
int peak = 0;

void CountPresent(int change) {
  std::lock_guard lock(count_mutex);
  present += change;
  peak = std::max(peak, present);
}

void FreeBytes(std::byte* bytes) {
  std::free(bytes);
}

}  // namespace

int FakeStorage::Peak() {
  std::lock_guard lock(count_mutex);
  return peak;
}

void FakeStorage::ResetPeak() {
  std::lock_guard lock(count_mutex);
  peak = present;
}

FakeStorage::FakeStorage(std::string name, at::Tensor tensor)
    : ManagedStorage(std::move(name)),
      tensor_(std::move(tensor)),
      sizes_(tensor_.sizes().vec()),
      dtype_(tensor_.scalar_type()),
      storage_(MakeAbsentStorage(static_cast<std::int64_t>(tensor_.nbytes()), c10::kCPU)),
      home_(tensor_.nbytes()),
      here_(nullptr, &FreeBytes) {
  const at::Tensor values = tensor_.detach().contiguous();
  std::memcpy(home_.data(), values.const_data_ptr(), home_.size());
  SetAbsent(*storage_.unsafeGetStorageImpl(), "the bytes of '" + this->name() + "' are not here");
  Register(storage_, this);
  Bind(tensor_, storage_, dtype_, sizes_, /*managed=*/true);
}

FakeStorage::~FakeStorage() {
  Unregister(storage_);
}

void FakeStorage::Acquire(bool to_write) {
  std::lock_guard lock(mutex_);
  if (std::exchange(fail_, false)) throw StateError("cannot bring '" + name() + "' here");
  ++acquires_;
  if (to_write) ++writers_;
  if (pins_++ > 0) return;
  const std::size_t room = (home_.size() + 63) / 64 * 64 + 64;
  here_.reset(static_cast<std::byte*>(std::aligned_alloc(64, room)));
  std::memcpy(here_.get(), home_.data(), home_.size());
  SetPresent(*storage_.unsafeGetStorageImpl(), here_.get());
  CountPresent(1);
}

void FakeStorage::Release(Outcome outcome) {
  std::lock_guard lock(mutex_);
  if (outcome != Outcome::kRead) --writers_;
  if (outcome == Outcome::kAbandoned) ++abandoned_;
  if (outcome == Outcome::kWritten) {
    ++writes_;
    std::memcpy(home_.data(), here_.get(), home_.size());
  }
  if (--pins_ > 0) return;
  SetAbsent(*storage_.unsafeGetStorageImpl(), "the bytes of '" + name() + "' are not here");
  std::memset(here_.get(), 0xff, home_.size());  // NaN, and an index far out of range
  here_.reset();
  CountPresent(-1);
}

at::Tensor FakeStorage::Values() const {
  std::lock_guard lock(mutex_);
  at::Tensor values = at::empty(sizes_, dtype_);
  std::memcpy(values.mutable_data_ptr(), home_.data(), home_.size());
  return values;
}

FakeStorages Manage(const std::vector<at::Tensor>& tensors) {
  FakeStorages storages;
  for (const at::Tensor& tensor : tensors) {
    storages.push_back(
        std::make_unique<FakeStorage>("t" + std::to_string(storages.size()), tensor));
  }
  return storages;
}

testing::AssertionResult BitwiseEqual(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return testing::AssertionFailure() << "one is undefined";
  if (!a.defined()) return testing::AssertionSuccess();
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) {
    return testing::AssertionFailure()
           << a.scalar_type() << a.sizes() << " and " << b.scalar_type() << b.sizes();
  }
  const at::Tensor x = a.detach().clone(at::MemoryFormat::Contiguous),
                   y = b.detach().clone(at::MemoryFormat::Contiguous);
  if (x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << "other bits: " << x << "\nand " << y;
}

at::Tensor Random(at::IntArrayRef sizes, std::uint64_t seed, at::ScalarType dtype) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed)).to(dtype);
}

void ExpectLikeUnmanaged(const std::vector<at::Tensor>& leaves,
                         const std::function<at::Tensor(const std::vector<at::Tensor>&)>& body) {
  std::vector<at::Tensor> plain, managed;
  for (const at::Tensor& leaf : leaves) {
    plain.push_back(leaf.clone().set_requires_grad(true));
    managed.push_back(leaf.clone().set_requires_grad(true));
  }
  const FakeStorages storages = Manage(managed);
  const at::Tensor expected = body(plain), actual = body(managed);
  EXPECT_TRUE(BitwiseEqual(actual, expected));
  expected.sum().backward();
  actual.sum().backward();
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    EXPECT_TRUE(BitwiseEqual(managed[i].grad(), plain[i].grad())) << "gradient of leaf " << i;
    EXPECT_GT(storages[i]->acquires(), 0) << "leaf " << i;
    EXPECT_EQ(storages[i]->pins(), 0) << "leaf " << i;
    EXPECT_EQ(storages[i]->writes(), 0) << "leaf " << i;
  }
}

}  // namespace ullage::torchx
