// What readers of another host and the service of an owner say to each other over TCP.
//
// One request, one reply, any number of times on a connection. Both are structs of fixed size in
// the byte order of the machine (all ranks of a run have the same), so a receiver never allocates
// by what a message says. A reply to kRead that reached its word is followed by the bytes.
#pragma once

#include <array>
#include <cstdint>

#include "comm/status_page.h"

namespace ullage::comm {

// Sixteen random bytes, made by rank 0 and spread through the store: a connection that does not
// know them is closed.
using Token = std::array<std::uint64_t, 2>;

enum class Ask : std::uint32_t {
  kRead = 1,  // wait for a word, then the bytes
  kWait,      // wait for a word, then its value
  kPosition,  // wait until the rank has entered `at_least` collectives, then its record
  kAbort,     // the asking rank stops the group: `text` says why
};

struct Request {
  static constexpr std::uint64_t kMagic = 0x316b7341'6c6c5501;
  std::uint64_t magic = kMagic;
  Token token = {};
  Ask ask = Ask::kWait;
  std::uint32_t reader = 0;  // the asking rank, for messages
  std::uint64_t window = 0;
  std::uint32_t word = 0;
  std::uint32_t wait_ms = 0;  // how long the service may wait before it answers "not yet"
  std::uint64_t at_least = 0;
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
  char text[StatusPage::kReasonBytes] = {};
};
static_assert(sizeof(Request) == 72 + StatusPage::kReasonBytes);

enum class Outcome : std::uint32_t {
  kReached = 1,
  kNotYet,
  kRefused,  // no such window, word or range; the connection is closed afterwards
};

struct Reply {
  static constexpr std::uint64_t kMagic = 0x31796c52'6c6c5501;
  std::uint64_t magic = kMagic;
  Outcome outcome = Outcome::kNotYet;
  State state = State::kJoining;  // of the owner
  std::uint64_t value = 0;        // of the word
  std::uint64_t entered = 0;
  std::uint64_t finished = 0;
  Record record = {};      // kPosition reached: the record of position at_least - 1; else the last
  std::int64_t bytes = 0;  // that follow
  char reason[StatusPage::kReasonBytes] = {};  // when state is kAborted
};
static_assert(sizeof(Reply) == 80 + StatusPage::kReasonBytes);

}  // namespace ullage::comm
