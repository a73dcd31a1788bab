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
  Memory memory(Place::kHost);
  Ledger& ledger = memory.ledger();
  {
    PhaseScope scope(ledger, Phase::kForward);
    const Buffer slots = memory.Allocate(Tag::kSlots, {100, 28});
    EXPECT_EQ(Of(ledger.now(), Tag::kSlots), 100);
    EXPECT_EQ(Of(ledger.now(), Tag::kPadding), 28);
  }
  const Buffer weights = memory.Allocate(Tag::kWeights, {64, 0});
  EXPECT_EQ(Of(ledger.now(), Tag::kSlots), 0);
  EXPECT_EQ(Of(ledger.peak(), Tag::kSlots), 100);
  EXPECT_EQ(Of(ledger.peak_in(Phase::kForward), Tag::kSlots), 100);
  EXPECT_EQ(Of(ledger.peak_in(Phase::kForward), Tag::kWeights), 0);
  EXPECT_EQ(ledger.peak_total(), 128);
}

TEST(Ledger, CountsEachTierByItselfAndBothTogether) {
  Memory memory(Place::kHost);
  Ledger& ledger = memory.ledger();
  const Buffer near = memory.Allocate(Tag::kMoments, {100, 28});
  {
    const Buffer far = memory.Allocate(Tag::kMoments, {1000, 24}, Tier::kHost);
    const Claim claim = memory.Note(Tag::kMoments, {10, 0}, Tier::kHost);
    EXPECT_EQ(far.tier(), Tier::kHost);
    EXPECT_EQ(Of(ledger.now(Tier::kDevice), Tag::kMoments), 100);
    EXPECT_EQ(Of(ledger.now(Tier::kHost), Tag::kMoments), 1010);
    EXPECT_EQ(Of(ledger.now(Tier::kHost), Tag::kPadding), 24);
    EXPECT_EQ(Of(ledger.now(), Tag::kMoments), 1110);
    EXPECT_EQ(Of(ledger.now(), Tag::kPadding), 52);
  }
  EXPECT_EQ(Of(ledger.now(Tier::kHost), Tag::kMoments), 0);
  EXPECT_EQ(Of(ledger.peak(Tier::kHost), Tag::kMoments), 1010);
  EXPECT_EQ(Of(ledger.peak(Tier::kDevice), Tag::kMoments), 100);
}

TEST(Ledger, IsEmptyWhenAllBuffersEnded) {
  Memory memory(Place::kHost);
  {
    Buffer a = memory.Allocate(Tag::kMaster, {1 << 20, 5}, Tier::kHost);
    Buffer b = std::move(a);
    a = memory.Allocate(Tag::kMoments, {7, 0});
    std::swap(a, b);
  }
  EXPECT_EQ(memory.ledger().now(), TagBytes{});
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    EXPECT_EQ(memory.ledger().now(tier), TagBytes{});
  }
}

TEST(Buffer, IsAlignedAndZeroOnBothTiers) {
  Memory memory(Place::kHost);
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    for (const std::int64_t size : {1, 100, 1 << 20}) {
      const Buffer buffer = memory.Allocate(Tag::kBuckets, {size, 0}, tier);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0u);
      for (std::int64_t i = 0; i < size; ++i) ASSERT_EQ(buffer.data()[i], std::byte{0});
    }
  }
}

TEST(Buffer, OfADryRunCountsButHoldsNothing) {
  Memory memory(Place::kHost, /*dry=*/true);
  memory.UseHostArena([](std::int64_t) -> std::byte* { throw StateError("asked in a dry run"); });
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    const Buffer buffer = memory.Allocate(Tag::kMaster, {std::int64_t{1} << 50, 0}, tier);
    EXPECT_EQ(buffer.data(), nullptr);
    EXPECT_EQ(buffer.size(), std::int64_t{1} << 50);
    EXPECT_EQ(Of(memory.ledger().now(tier), Tag::kMaster), std::int64_t{1} << 50);
  }
  EXPECT_TRUE(memory.device().is_meta());
}

TEST(Buffer, RefusedByTheSystemNamesTheRequestAndWhatIsHeldOnTheTier) {
  Memory memory(Place::kHost);
  const Buffer held = memory.Allocate(Tag::kWeights, {2048, 0});
  const Buffer elsewhere = memory.Allocate(Tag::kMaster, {2048, 0}, Tier::kHost);
  try {
    const Buffer buffer = memory.Allocate(Tag::kMoments, {std::int64_t{1} << 60, 0});
    FAIL();
  } catch (const OutOfMemoryError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("for moments"), std::string::npos) << text;
    EXPECT_NE(text.find("weights 2.00 KiB"), std::string::npos) << text;
    EXPECT_EQ(text.find("master"), std::string::npos) << text;
  }
  EXPECT_EQ(Of(memory.ledger().now(), Tag::kMoments), 0);
}

TEST(Buffer, OnTheHostComesFromTheArenaAndIsNotFreed) {
  alignas(64) static std::byte arena[4096] = {};
  Memory memory(Place::kHost);
  std::int64_t used = 0;
  memory.UseHostArena([&](std::int64_t bytes) {
    std::byte* const data = arena + used;
    used += bytes;
    return data;
  });
  {
    const Buffer near = memory.Allocate(Tag::kMoments, {128, 0});
    const Buffer far = memory.Allocate(Tag::kMoments, {100, 28}, Tier::kHost);
    EXPECT_EQ(far.data(), arena);
    EXPECT_EQ(used, 128);  // the device's does not come from there
    far.data()[0] = std::byte{7};
  }
  EXPECT_EQ(arena[0], std::byte{7});
  EXPECT_EQ(Of(memory.ledger().now(Tier::kHost), Tag::kMoments), 0);
}

TEST(Memory, OnTheHostHasNoTierThatTheCpuCannotTouch) {
  const Memory memory(Place::kHost);
  EXPECT_FALSE(memory.OnCuda(Tier::kDevice));
  EXPECT_FALSE(memory.OnCuda(Tier::kHost));
  EXPECT_TRUE(memory.device().is_cpu());
}

TEST(Process, ResidentMemoryIsKnown) {
  EXPECT_GT(ResidentBytes(), 1 << 20);
  EXPECT_GE(PeakResidentBytes(), ResidentBytes());
}

}  // namespace
}  // namespace ullage::memory
