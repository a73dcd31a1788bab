#include "config/nearest_key.h"

#include <algorithm>
#include <cctype>
#include <utility>
#include <vector>

namespace ullage::config {
namespace {

// A longer word is no slip of a key; comparing it would only cost time.
constexpr std::size_t kLongestWord = 200;
constexpr double kNearEnough = 0.7;

// What people know these by elsewhere.
constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
    {"learning_rate", "optimizer.params.lr"},
    {"max_grad_norm", "gradient_clipping"},
    {"grad_clip", "gradient_clipping"},
    {"per_device_train_batch_size", "train_micro_batch_size_per_gpu"},
    {"max_steps", "scheduler.params.total_num_steps"},
};

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

// 1 for equal words, 0 for words with nothing in common. One slip is near in a short word too.
double Likeness(std::string_view a, std::string_view b) {
  const std::size_t longest = std::max(a.size(), b.size());
  if (longest == 0) return 1;
  const std::size_t distance = EditDistance(a, b);
  const double likeness = 1 - static_cast<double>(distance) / static_cast<double>(longest);
  return distance == 1 && longest >= 3 ? std::max(likeness, 0.75) : likeness;
}

std::vector<std::string_view> Words(std::string_view path) {
  std::vector<std::string_view> words;
  while (!path.empty()) {
    const std::size_t end = std::min(path.find_first_of("._[]"), path.size());
    if (end > 0) words.push_back(path.substr(0, end));
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return words;
}

// The share of words of `written` that `known` has too, and a little for the share of `known`
// that was written. Words count once.
double WordLikeness(const std::vector<std::string_view>& written,
                    std::vector<std::string_view> known) {
  if (written.empty() || known.empty()) return 0;
  const double known_count = static_cast<double>(known.size());
  double common = 0;
  for (const std::string_view word : written) {
    if (known.empty()) break;
    const auto by_likeness = [&](std::string_view a, std::string_view b) {
      return Likeness(word, a) < Likeness(word, b);
    };
    const auto best = std::max_element(known.begin(), known.end(), by_likeness);
    const double likeness = Likeness(word, *best);
    if (likeness < 0.6) continue;
    common += likeness;
    known.erase(best);
  }
  return 0.8 * common / static_cast<double>(written.size()) + 0.2 * common / known_count;
}

std::string_view LastPart(std::string_view path) {
  return path.substr(path.rfind('.') == path.npos ? 0 : path.rfind('.') + 1);
}

std::string_view SectionOf(std::string_view path) {
  return path.substr(0, path.size() - LastPart(path).size());
}

double KeyLikeness(std::string_view written, std::string_view key) {
  // A key under its own name but in the wrong place is nearer than one with a similar path.
  if (LastPart(written) == LastPart(key)) return 0.97;
  // The section that the unknown key stands in is no advice.
  if (written.starts_with(key) && written.find_first_of(".[", key.size()) == key.size()) return 0;
  // In one section only the names tell keys apart; elsewhere a little less than that convinces.
  double weight = 0.9;
  if (SectionOf(written) == SectionOf(key)) {
    written = LastPart(written);
    key = LastPart(key);
    weight = 1;
  }
  return weight * std::max(Likeness(written, key), WordLikeness(Words(written), Words(key)));
}

}  // namespace

std::size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  std::vector<std::size_t> next(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    next[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      next[j] = std::min({row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        next[j] = std::min(next[j], before[j - 2] + 1);
      }
    }
    before.swap(row);
    row.swap(next);
  }
  return row[b.size()];
}

std::string NearestKey(std::string_view written, std::span<const std::string_view> known) {
  if (written.size() > kLongestWord) return "";
  const std::string lower = Lower(written);
  for (const auto& [other, key] : kOtherNames) {
    if (LastPart(lower) == other && std::find(known.begin(), known.end(), key) != known.end()) {
      return std::string(key);
    }
  }
  std::string_view nearest;
  double best = kNearEnough;
  for (const std::string_view key : known) {
    const double likeness = KeyLikeness(lower, key);
    if (likeness > best) {
      best = likeness;
      nearest = key;
    }
  }
  return std::string(nearest);
}

std::string NearestWord(std::string_view written, std::span<const std::string_view> known) {
  if (written.size() > kLongestWord) return "";
  const std::string lower = Lower(written);
  std::string_view nearest;
  double best = 0.6;
  for (const std::string_view word : known) {
    const double likeness = Likeness(lower, Lower(word));
    if (likeness > best) {
      best = likeness;
      nearest = word;
    }
  }
  return std::string(nearest);
}

}  // namespace ullage::config
