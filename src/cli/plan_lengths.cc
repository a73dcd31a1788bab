#include "cli/plan_lengths.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "cli/data_choice.h"
#include "files/file_system.h"

namespace ullage::cli {

FileLengths LengthsOf(const std::string& path, const models::Model& model,
                      std::int64_t micro_batch) {
  files::PosixFileSystem fs;
  const auto data = DataFor(files::TokenFile::Open(fs, path), model, {}, std::nullopt);
  std::vector<std::int64_t> lengths = data::Lengths(*data);
  for (std::int64_t& length : lengths) length = std::min(length, model.max_positions());
  FileLengths facts;
  facts.records = static_cast<std::int64_t>(lengths.size());
  const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  facts.mean = static_cast<double>(tokens) / static_cast<double>(facts.records);

  std::ranges::shuffle(lengths, std::mt19937_64(0));
  std::int64_t padded = 0;
  for (std::size_t first = 0; first < lengths.size();) {
    const std::size_t end = std::min(first + static_cast<std::size_t>(micro_batch), lengths.size());
    const std::int64_t longest =
        *std::max_element(lengths.begin() + static_cast<std::ptrdiff_t>(first),
                          lengths.begin() + static_cast<std::ptrdiff_t>(end));
    padded += longest * static_cast<std::int64_t>(end - first);
    first = end;
  }
  facts.padding = padded == 0 ? 0 : 1 - static_cast<double>(tokens) / static_cast<double>(padded);

  std::ranges::sort(lengths);
  facts.longest = lengths.back();
  facts.median = lengths[lengths.size() / 2];
  facts.most = lengths[std::min(lengths.size() - 1, lengths.size() * 95 / 100)];
  return facts;
}

}  // namespace ullage::cli
