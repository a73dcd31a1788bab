#include <gtest/gtest.h>

#include "memory/buffer.h"
#include "memory/ledger.h"
#include "memory/process.h"
#include "ullage/error.h"

namespace ullage::memory {
namespace {

std::int64_t Of(const TagBytes& bytes, Tag tag) {
  return bytes[static_cast<std::size_t>(tag)];
}

TEST(Ledger, KeepsThePeakOfEachTagAndPhase) {
  Ledger ledger;
  {
    PhaseScope scope(ledger, Phase::kForward);
    Buffer slots(ledger, Place::kHost, Tag::kSlots, {100, 28});
    EXPECT_EQ(Of(ledger.now(), Tag::kSlots), 100);
    EXPECT_EQ(Of(ledger.now(), Tag::kPadding), 28);
  }
  Buffer weights(ledger, Place::kHost, Tag::kWeights, {64, 0});
  EXPECT_EQ(Of(ledger.now(), Tag::kSlots), 0);
  EXPECT_EQ(Of(ledger.peak(), Tag::kSlots), 100);
  EXPECT_EQ(Of(ledger.peak_in(Phase::kForward), Tag::kSlots), 100);
  EXPECT_EQ(Of(ledger.peak_in(Phase::kForward), Tag::kWeights), 0);
  EXPECT_EQ(ledger.peak_total(), 128);
}

TEST(Ledger, IsEmptyWhenAllBuffersEnded) {
  Ledger ledger;
  {
    Buffer a(ledger, Place::kHost, Tag::kMaster, {1 << 20, 5});
    Buffer b = std::move(a);
    a = Buffer(ledger, Place::kHost, Tag::kMoments, {7, 0});
  }
  for (const std::int64_t bytes : ledger.now()) EXPECT_EQ(bytes, 0);
}

TEST(Buffer, IsAlignedAndZero) {
  Ledger ledger;
  for (const std::int64_t size : {1, 100, 1 << 20}) {
    Buffer buffer(ledger, Place::kHost, Tag::kBuckets, {size, 0});
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0u);
    for (std::int64_t i = 0; i < size; ++i) ASSERT_EQ(buffer.data()[i], std::byte{0});
  }
}

TEST(Buffer, OfADryRunCountsButHoldsNothing) {
  Ledger ledger;
  Buffer buffer(ledger, Place::kNowhere, Tag::kMaster, {std::int64_t{1} << 50, 0});
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(buffer.size(), std::int64_t{1} << 50);
  EXPECT_EQ(Of(ledger.now(), Tag::kMaster), std::int64_t{1} << 50);
}

TEST(Buffer, RefusedByTheSystemNamesTheRequestAndWhatIsHeld) {
  Ledger ledger;
  Buffer held(ledger, Place::kHost, Tag::kWeights, {2048, 0});
  try {
    Buffer buffer(ledger, Place::kHost, Tag::kMoments, {std::int64_t{1} << 60, 0});
    FAIL();
  } catch (const OutOfMemoryError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("for moments"), std::string::npos) << text;
    EXPECT_NE(text.find("weights 2.00 KiB"), std::string::npos) << text;
  }
  EXPECT_EQ(Of(ledger.now(), Tag::kMoments), 0);
}

TEST(Process, ResidentMemoryIsKnown) {
  EXPECT_GT(ResidentBytes(), 1 << 20);
  EXPECT_GE(PeakResidentBytes(), ResidentBytes());
}

}  // namespace
}  // namespace ullage::memory
