#include "comm/status_page.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>

namespace ullage::comm {

bool Record::Agrees(const Record& other) const {
  return fingerprint.kind == other.fingerprint.kind && fingerprint.item == other.fingerprint.item &&
         fingerprint.sequence == other.fingerprint.sequence && bytes == other.bytes &&
         root == other.root;
}

std::string Describe(const Record& record, bool with_bytes) {
  std::string text = fmt::format("at {} of item {}, position {}", Name(record.fingerprint.kind),
                                 record.fingerprint.item, record.fingerprint.sequence);
  if (with_bytes) text += fmt::format(" ({} bytes, root {})", record.bytes, record.root);
  return text;
}

std::string Describe(const Position& position) {
  if (position.entered == 0) return "before its first collective";
  const Fingerprint& last = position.last.fingerprint;
  return fmt::format("{} {} of item {}, position {}",
                     position.entered > position.finished ? "in" : "after", Name(last.kind),
                     last.item, last.sequence);
}

void StatusPage::Enter(const Record& record) {
  const std::uint64_t sequence = record.fingerprint.sequence;
  const auto words = std::bit_cast<std::array<std::uint64_t, sizeof(Record) / 8>>(record);
  Words& slot = slots_[sequence % 2];
  for (std::size_t i = 0; i < words.size(); ++i) {
    slot[i].store(words[i], std::memory_order_relaxed);
  }
  entered_.store(sequence + 1, std::memory_order_release);
}

void StatusPage::MarkAborted(const std::string& reason) {
  if (state() == State::kAborted) return;
  const std::size_t size = std::min(reason.size(), kReasonBytes - 1);
  std::memcpy(reason_, reason.data(), size);
  reason_[size] = '\0';
  state_.store(static_cast<std::uint32_t>(State::kAborted), std::memory_order_release);
}

void StatusPage::MarkRunning() {
  auto joining = static_cast<std::uint32_t>(State::kJoining);
  state_.compare_exchange_strong(joining, static_cast<std::uint32_t>(State::kRunning));
}

void StatusPage::MarkClosed() {
  auto current = state_.load();
  while (current != static_cast<std::uint32_t>(State::kAborted) &&
         !state_.compare_exchange_weak(current, static_cast<std::uint32_t>(State::kClosed))) {
  }
}

std::string StatusPage::reason() const {
  return std::string(reason_, ::strnlen(reason_, kReasonBytes));
}

Record StatusPage::At(std::uint64_t sequence) const {
  std::array<std::uint64_t, sizeof(Record) / 8> words;
  const Words& slot = slots_[sequence % 2];
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = slot[i].load(std::memory_order_relaxed);
  return std::bit_cast<Record>(words);
}

Position StatusPage::position() const {
  Position position;
  position.finished = finished();
  position.entered = entered();
  if (position.entered > 0) position.last = At(position.entered - 1);
  return position;
}

}  // namespace ullage::comm
