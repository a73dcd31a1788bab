// Where the elements of parameters are in the layouts of the stages and in the universal form.
#include <algorithm>
#include <tuple>

#include <fmt/format.h>

#include "files/deepspeed_builder.h"
#include "files/json_handler.h"
#include "ullage/error.h"

namespace ullage::files {
namespace {

std::int64_t RoundUp(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

void FlatVector::Add(std::int64_t begin, const Piece& piece) {
  if (piece.count > 0) parts_.push_back({begin, piece});
}

std::vector<FlatVector::Piece> FlatVector::Slice(std::int64_t begin, std::int64_t count) const {
  std::vector<Piece> result;
  const std::int64_t end = begin + count;
  auto part = std::ranges::upper_bound(parts_, begin, {}, &Part::begin);
  if (part != parts_.begin()) --part;
  for (; part != parts_.end() && part->begin < end; ++part) {
    const std::int64_t from = std::max(begin, part->begin);
    const std::int64_t to = std::min(end, part->begin + part->piece.count);
    if (from >= to) continue;
    Piece piece = part->piece;
    piece.offset += (from - part->begin) * ElementBytes(piece.type);
    piece.count = to - from;
    result.push_back(piece);
  }
  return result;
}

// Every group is one vector of all its parameters, cut into equal parts.
void DeepSpeedBuilder::BuildFlat(const std::vector<RankState>& ranks) {
  if (ranks.front().size() != groups_.size()) {
    Fail(files_.folder, fmt::format("the model file has {} groups, the optimizer files {}",
                                    groups_.size(), ranks.front().size()));
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    // Padding is stripped from the weights of the last ranks, and in some releases not from
    // moments.
    std::int64_t part = 0;
    std::int64_t available = 0;
    for (const RankState& rank : ranks) {
      available += rank[g].pieces[0]->count;
      for (const auto& piece : rank[g].pieces) part = std::max(part, piece ? piece->count : 0);
    }
    std::array<FlatVector, kStates> flat;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      for (std::size_t s = 0; s < kStates; ++s) {
        const auto& piece = ranks[r][g].pieces[s];
        if (piece) flat[s].Add(static_cast<std::int64_t>(r) * part, *piece);
      }
    }
    if (!paddings_.empty() &&
        (paddings_.size() != groups_.size() || paddings_[g].size() != groups_[g].size())) {
      Fail(files_.folder, "param_alignment_paddings are not those of param_shapes");
    }
    std::int64_t at = 0;
    for (std::size_t i = 0; i < groups_[g].size(); ++i) {
      const Named& named = groups_[g][i];
      Parameter& parameter = Declare(files_.folder, named, Kind::kTrained);
      for (std::size_t s = 0; s < kStates; ++s) {
        Fill(parameter, s, flat[s].Slice(at, named.numel));
      }
      parameter.optimizer_step = ranks.front()[g].step;
      at += named.numel;  // no overflow: the files hold so many elements
      if (!paddings_.empty()) at += std::clamp<std::int64_t>(paddings_[g][i], 0, available);
    }
    const std::int64_t aligned = 2 * result_.ranks_;
    if (RoundUp(at, aligned) != RoundUp(available, aligned)) {
      Fail(files_.folder,
           fmt::format("the parameters of group {} have {} elements, the files hold {}", g, at,
                       available));
    }
  }
}

// Every rank has the r-th chunk of every parameter, one behind the other.
void DeepSpeedBuilder::BuildChunks(const std::vector<RankState>& ranks) {
  const auto world = static_cast<std::int64_t>(ranks.size());
  std::vector<std::array<FlatVector, kStates>> flat(ranks.size());
  std::vector<std::int64_t> ends;  // of rank 0's groups
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    std::int64_t begin = 0;
    for (std::size_t g = 0; g < ranks[r].size(); ++g) {
      const auto& pieces = ranks[r][g].pieces;
      for (std::size_t s = 0; s < kStates; ++s) {
        if (!pieces[s]) continue;
        if (pieces[s]->count != ranks[0][g].pieces[0]->count) {
          Fail(files_.optimizer.at(static_cast<int>(r)),
               fmt::format("has {} elements of group {}, rank 0 has {} weights", pieces[s]->count,
                           g, ranks[0][g].pieces[0]->count));
        }
        flat[r][s].Add(begin, *pieces[s]);
      }
      begin += pieces[0]->count;
      if (r == 0) ends.push_back(begin);
    }
  }
  const std::int64_t available = ends.empty() ? 0 : ends.back();
  std::int64_t at = 0;
  for (const std::vector<Named>& group : groups_) {
    for (const Named& named : group) {
      const std::int64_t chunk = named.numel / world + (named.numel % world != 0 ? 1 : 0);
      Parameter& parameter = Declare(files_.folder, named, Kind::kTrained);
      for (std::size_t s = 0; s < kStates; ++s) {
        std::vector<Piece> pieces;
        std::int64_t left = named.numel;
        for (std::size_t r = 0; r < flat.size() && left > 0; ++r) {
          const std::vector<Piece> more = flat[r][s].Slice(at, std::min(chunk, left));
          pieces.insert(pieces.end(), more.begin(), more.end());
          left -= std::min(chunk, left);
        }
        Fill(parameter, s, std::move(pieces));
      }
      const auto in = std::ranges::upper_bound(ends, at) - ends.begin();
      if (in < std::ssize(ends)) {
        parameter.optimizer_step = ranks[0][static_cast<std::size_t>(in)].step;
      }
      at += chunk;
    }
  }
  if (at != available) {
    Fail(files_.folder,
         fmt::format("the parameters have {} elements a rank, the files hold {}", at, available));
  }
}

void DeepSpeedBuilder::AddFrozenChunks() {
  std::vector<Named> frozen;
  std::vector<std::vector<Piece>> pieces;
  for (const auto& [rank, path] : files_.model) {
    const Source source = OpenFile(path);
    const PickleValue root = source.file.root();
    const auto shapes = root.Find("frozen_param_shapes");
    const auto fragments = root.Find("frozen_param_fragments");
    if (!shapes || shapes->IsNone() || !fragments || fragments->IsNone()) return;
    if (rank == 0) {
      frozen = Shapes(path, *shapes);
      pieces.resize(frozen.size());
    }
    for (std::size_t i = 0; i < frozen.size(); ++i) {
      pieces[i].push_back(PieceOf(source, fragments->Get(frozen[i].name),
                                  "frozen " + JsonHandler::Quoted(frozen[i].name)));
    }
  }
  for (std::size_t i = 0; i < frozen.size(); ++i) {
    const std::int64_t held = pieces[i].front().count;
    std::int64_t left = frozen[i].numel;
    for (Piece& piece : pieces[i]) {
      // Padding lies at the end of the last chunks.
      if (piece.count != held) {
        Fail(files_.folder, "chunks of unequal size of " + JsonHandler::Quoted(frozen[i].name));
      }
      piece.count = std::min(piece.count, left);
      left -= piece.count;
    }
    Fill(Declare(files_.folder, frozen[i], Kind::kFrozen), 0, std::move(pieces[i]));
  }
}

// The module as torch has it. Which parameters are frozen is not in the file.
void DeepSpeedBuilder::BuildStage0(const Source& source) {
  AddFromModule(source);
  std::map<std::tuple<std::int64_t, std::int64_t, ElementType>, std::string> places;
  std::vector<std::string> names;
  for (Parameter& parameter : result_.parameters_) {
    if (parameter.kind == Kind::kBuffer) continue;
    parameter.kind = Kind::kTrained;
    const Piece& piece = parameter.pieces[0].front();
    const auto [place, added] =
        places.emplace(std::tuple(piece.offset, piece.count, piece.type), parameter.name);
    if (added || piece.count == 0) {
      names.push_back(parameter.name);
    } else {
      parameter.shared_with = place->second;
    }
  }
  AddStage0States(source, names);
}

void DeepSpeedBuilder::AddStage0States(const Source& source,
                                       const std::vector<std::string>& names) {
  result_.moments_note_ =
      "at stage 0 the optimizer's states have numbers and no names, so that they can be told apart "
      "only where one group has all parameters; start from the model's weights";
  const auto saved = source.file.root().Find("optimizer");
  if (!saved || saved->IsNone()) return;
  ReadLossScale(*saved);
  const auto wrapped = saved->Find("optimizer_state_dict");
  const PickleValue optimizer = wrapped ? *wrapped : *saved;
  const auto groups = optimizer.Find("param_groups");
  const auto states = optimizer.Find("state");
  if (!groups || !states || groups->size() != 1 || states->kind() != PickleKind::kDict) return;
  const PickleValue numbers = (*groups)[0].Get("params");
  if (numbers.size() != names.size()) return;
  const auto masters = saved->Find("fp32_groups");
  const bool has_masters = masters && masters->size() == 1 && (*masters)[0].size() == names.size();
  const auto shape_of = [&](std::size_t i) -> Parameter& {
    return result_.parameters_[result_.by_name_.at(names[i])];
  };
  // The order is that of the module; shapes that differ would say that it is another one.
  for (std::size_t i = 0; i < states->size(); ++i) {
    const std::int64_t number = states->KeyAt(i).Integer("the number of a state");
    if (number < 0 || number >= std::ssize(names)) return;
    const auto exp_avg = states->ValueAt(i).Find("exp_avg");
    if (exp_avg &&
        exp_avg->Tensor("exp_avg").shape != shape_of(static_cast<std::size_t>(number)).shape) {
      return;
    }
  }
  result_.moments_note_.clear();
  for (std::size_t i = 0; i < states->size(); ++i) {
    Parameter& parameter =
        shape_of(static_cast<std::size_t>(states->KeyAt(i).Integer("the number of a state")));
    GroupState group;
    ReadGroup(source, states->ValueAt(i), group);
    for (std::size_t s = 1; s < kStates; ++s) {
      if (group.pieces[s]) Fill(parameter, s, {*group.pieces[s]});
    }
    parameter.optimizer_step = group.step;
  }
  for (std::size_t i = 0; has_masters && i < names.size(); ++i) {
    Fill(shape_of(i), 0, {PieceOf(source, (*masters)[0][i], "fp32 weights")});
  }
}

// A tensor, or a dict with one under "param".
void DeepSpeedBuilder::BuildUniversal() {
  const std::string zero = files_.folder + "/zero/";
  if (const std::string path = zero + "optimizer_state.pt"; fs_.Stat(path)) {
    const Source source = OpenFile(path);
    const auto stage = source.file.root().Find("zero_stage");
    const std::int64_t number = stage ? stage->Integer("zero_stage") : 1;
    if (number < 1 || number > 3) Fail(path, fmt::format("is of stage {}", number));
    result_.stage_ = static_cast<int>(number);
    ReadLossScale(source.file.root());
  } else {
    Fail(path, "is missing");
  }
  result_.ranks_ = static_cast<int>(std::max<std::size_t>(files_.model.size(), 1));
  if (!has_groups_) Fail(files_.model.at(0), "has no param_shapes");
  constexpr std::array<const char*, kStates> kFiles = {"fp32.pt", "exp_avg.pt", "exp_avg_sq.pt"};
  for (const std::vector<Named>& group : groups_) {
    for (const Named& named : group) {
      // Names become folders: one that leads elsewhere is not one that DeepSpeed made.
      if (named.name.empty() || named.name.find('/') != std::string::npos ||
          named.name.find('\0') != std::string::npos || named.name == "." || named.name == "..") {
        Fail(files_.folder, "parameter " + JsonHandler::Quoted(named.name) + " names no folder");
      }
      Parameter& parameter = Declare(files_.folder, named, Kind::kTrained);
      for (std::size_t s = 0; s < kStates; ++s) {
        const std::string path = zero + named.name + "/" + kFiles[s];
        if (s > 0 && !fs_.Stat(path)) continue;
        const Source source = OpenFile(path);
        PickleValue value = source.file.root();
        if (value.kind() == PickleKind::kDict) value = value.Get("param");
        Fill(parameter, s, {PieceOf(source, value, "the tensor")});
      }
      if (const std::string path = zero + named.name + "/step.pt"; fs_.Stat(path)) {
        const Source source = OpenFile(path);
        parameter.optimizer_step = Scalar(source, source.file.root());
      }
    }
  }
}

}  // namespace ullage::files
