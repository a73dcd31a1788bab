#include "tiers/numa.h"

#include <sys/mman.h>

#include "tiers/tiers_test_support.h"
#include "ullage/error.h"

namespace ullage::tiers {
namespace {

TEST(Numa, ReadsListsOfNodes) {
  EXPECT_EQ(ParseNodeList("0\n"), (std::vector<int>{0}));
  EXPECT_EQ(ParseNodeList("0-2,8,10-11\n"), (std::vector<int>{0, 1, 2, 8, 10, 11}));
}

TEST(Numa, ReadsNothingFromListsOfAnotherForm) {
  for (const char* text : {"", "x", "1-", "3-1", "1,,2", "0-99999", "-1", "0;1"}) {
    EXPECT_TRUE(ParseNodeList(text).empty()) << text;
  }
}

TEST(Numa, RefusesANodeThatDoesNotExistAndNamesThoseThatDo) {
  std::byte page{};
  const std::string message =
      MessageOf<ConfigError>([&] { PlacePages(&page, sizeof(page), 1000); });
  EXPECT_TRUE(Contains(message, "memory node 1000")) << message;
  EXPECT_TRUE(Contains(message, "its nodes with memory are " + std::to_string(MemoryNodes()[0])))
      << message;
}

TEST(Numa, PlacedPagesCanBeUsed) {
  constexpr std::size_t kSize = 1 << 16;
  for (const int node : {kFirstTouch, kInterleave, MemoryNodes().back()}) {
    void* start =
        ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(start, MAP_FAILED);
    const std::string refusal = PlacePages(start, kSize, node);
    if (MemoryNodes().size() == 1) {
      EXPECT_EQ(refusal, "");
    }
    static_cast<char*>(start)[kSize - 1] = 1;
    ::munmap(start, kSize);
  }
}

}  // namespace
}  // namespace ullage::tiers
