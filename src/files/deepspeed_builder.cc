#include "files/deepspeed_builder.h"

#include <cstring>

#include <fmt/format.h>

#include "files/json_handler.h"
#include "ullage/error.h"

namespace ullage::files {
namespace {

constexpr std::array<const char*, DeepSpeedCheckpoint::kStates> kStateNames = {"weights", "exp_avg",
                                                                               "exp_avg_sq"};

std::string Quoted(const std::string& name) {
  return JsonHandler::Quoted(name);
}

}  // namespace

void DeepSpeedBuilder::Fail(const std::string& path, const std::string& what) const {
  throw IoError(path + ": " + what,
                "copy the checkpoint again with the files of every rank, all of one save");
}

DeepSpeedBuilder::Source DeepSpeedBuilder::OpenFile(const std::string& path) {
  result_.files_.push_back(path);
  return {.file = TorchFile::Open(fs_, path),
          .index = static_cast<std::uint32_t>(result_.files_.size() - 1)};
}

DeepSpeedBuilder::Piece DeepSpeedBuilder::PieceOf(const Source& source, const PickleValue& value,
                                                  const std::string& what) const {
  const PickledTensor& tensor = value.Tensor(what);
  if (!tensor.contiguous) {
    throw UnsupportedError(
        fmt::format("{}: {} has shape {} and strides {}, so its elements do not follow each other",
                    source.file.path(), what, FormatShape(tensor.shape),
                    FormatShape(tensor.strides)),
        "save the weights as a state dict or as safetensors");
  }
  return {.file = source.index,
          .type = tensor.type,
          .offset = source.file.OffsetOf(tensor),
          .count = tensor.numel};
}

std::optional<double> DeepSpeedBuilder::Scalar(const Source& source,
                                               std::optional<PickleValue> value) const {
  if (!value) return std::nullopt;
  if (value->kind() != PickleKind::kTensor) {
    return value->IsNone() ? std::nullopt : std::optional(value->Number("step"));
  }
  const PickledTensor& tensor = value->Tensor("step");
  char bytes[8] = {};
  const auto as = [&]<typename T>(T number) {
    std::memcpy(&number, bytes, sizeof number);
    return static_cast<double>(number);
  };
  if (tensor.numel != 1 || ElementBytes(tensor.type) > 8) value->Unexpected("step", "a number");
  source.file.Read(tensor, 0, 1, bytes);
  switch (tensor.type) {
    case ElementType::kF32:
      return as(float{});
    case ElementType::kF64:
      return as(double{});
    case ElementType::kI64:
      return as(std::int64_t{});
    case ElementType::kI32:
      return as(std::int32_t{});
    default:
      value->Unexpected("step", "a number");
  }
}

std::vector<DeepSpeedBuilder::Named> DeepSpeedBuilder::Shapes(const std::string& path,
                                                              const PickleValue& dict) const {
  dict.ExpectKind(PickleKind::kDict, "the shapes of a group");
  std::vector<Named> result;
  for (std::size_t i = 0; i < dict.size(); ++i) {
    Named named;
    named.name = dict.KeyAt(i).String("the name of a parameter");
    const PickleValue shape = dict.ValueAt(i);
    shape.ExpectKind(PickleKind::kTuple, "the shape of " + Quoted(named.name));
    for (std::size_t d = 0; d < shape.size(); ++d)
      named.shape.push_back(shape[d].Integer("a size"));
    try {
      named.numel = CheckedNumel(named.shape, ElementType::kF64);
    } catch (const ConfigError& error) {
      Fail(path, "the shape of " + Quoted(named.name) + ": " + error.what());
    }
    result.push_back(std::move(named));
  }
  return result;
}

DeepSpeedBuilder::Parameter& DeepSpeedBuilder::Declare(const std::string& path, const Named& named,
                                                       Kind kind) {
  if (!result_.by_name_.emplace(named.name, result_.parameters_.size()).second) {
    Fail(path, "parameter " + Quoted(named.name) + " comes twice");
  }
  Parameter parameter;
  parameter.name = named.name;
  parameter.kind = kind;
  parameter.shape = named.shape;
  parameter.numel = named.numel;
  result_.parameters_.push_back(std::move(parameter));
  return result_.parameters_.back();
}

void DeepSpeedBuilder::Fill(Parameter& parameter, std::size_t state, std::vector<Piece> pieces) {
  std::int64_t count = 0;
  for (const Piece& piece : pieces) {
    count += piece.count;
    if (piece.type != pieces.front().type) {
      Fail(result_.folder_,
           fmt::format("the {} of {} are {} in one file and {} in another", kStateNames[state],
                       Quoted(parameter.name), Name(pieces.front().type), Name(piece.type)));
    }
  }
  if (count == 0 && parameter.numel > 0 && state > 0) return;
  if (count != parameter.numel) {
    Fail(result_.folder_, fmt::format("the files hold {} of the {} elements of the {} of {}", count,
                                      parameter.numel, kStateNames[state], Quoted(parameter.name)));
  }
  parameter.has[state] = true;
  parameter.type[state] = pieces.empty() ? ElementType::kF32 : pieces.front().type;
  parameter.pieces[state] = std::move(pieces);
}

void DeepSpeedBuilder::ReadModelFile(const PickleValue& root, const std::string& path) {
  root.ExpectKind(PickleKind::kDict, "what was saved");
  const auto number = [&](const char* key) {
    const auto value = root.Find(key);
    return value && !value->IsNone() ? value->Integer(key) : 0;
  };
  result_.global_steps_ = number("global_steps");
  result_.skipped_steps_ = number("skipped_steps");
  result_.global_samples_ = number("global_samples");
  if (const std::int64_t parts = number("mp_world_size"); parts > 1) {
    throw UnsupportedError(
        fmt::format("{}: the model is split by tensors into {} parts", path, parts),
        "convert it to a whole model with DeepSpeed's tools");
  }
  if (const auto scheduler = root.Find("lr_scheduler")) {
    if (const auto last = scheduler->Find("last_batch_iteration")) {
      result_.last_batch_iteration_ = last->Integer("last_batch_iteration");
    }
  }
  const auto shapes = root.Find("param_shapes");
  if (!shapes || shapes->IsNone()) return;
  shapes->ExpectKind(PickleKind::kList, "param_shapes");
  has_groups_ = true;
  for (std::size_t i = 0; i < shapes->size(); ++i) groups_.push_back(Shapes(path, (*shapes)[i]));
}

void DeepSpeedBuilder::AddFromModule(const Source& source) {
  const std::string& path = source.file.path();
  const PickleValue root = source.file.root();
  const PickleValue module = root.Get("module");
  module.ExpectKind(PickleKind::kDict, "module");
  std::map<std::string, bool> buffers;
  if (const auto names = root.Find("buffer_names"); names && !names->IsNone()) {
    names->ExpectKind(PickleKind::kList, "buffer_names");
    for (std::size_t i = 0; i < names->size(); ++i) {
      buffers.emplace((*names)[i].String("the name of a buffer"), true);
    }
  }
  const bool placeholders = result_.stage_ == 3;  // for everything but buffers
  for (std::size_t i = 0; i < module.size(); ++i) {
    Named named;
    named.name = module.KeyAt(i).String("a name in the module");
    const bool is_buffer = buffers.contains(named.name);
    if (result_.by_name_.contains(named.name) || (placeholders && !is_buffer)) continue;
    const std::string who = "module tensor " + Quoted(named.name);
    const PickledTensor& tensor = module.ValueAt(i).Tensor(who);
    named.shape = tensor.shape;
    named.numel = tensor.numel;
    Fill(Declare(path, named, is_buffer ? Kind::kBuffer : Kind::kFrozen), 0,
         {PieceOf(source, module.ValueAt(i), who)});
  }
}

void DeepSpeedBuilder::AddShared(const PickleValue& root, const std::string& path) {
  const auto shared = root.Find("shared_params");
  if (!shared || shared->IsNone()) return;
  shared->ExpectKind(PickleKind::kDict, "shared_params");
  for (std::size_t i = 0; i < shared->size(); ++i) {
    const std::string& stored = shared->ValueAt(i).String("the name of a shared parameter");
    const auto* original = result_.Find(stored);
    // A frozen one that was left out of the checkpoint has no values under either name.
    if (original == nullptr) continue;
    Named named;
    named.name = shared->KeyAt(i).String("the name of a shared parameter");
    named.shape = original->shape;
    named.numel = original->numel;
    if (!original->shared_with.empty()) Fail(path, Quoted(stored) + " is shared twice");
    const Kind kind = original->kind;
    Declare(path, named, kind).shared_with = stored;
  }
}

void DeepSpeedBuilder::ReadLossScale(const PickleValue& optimizer) {
  const auto scaler = optimizer.Find("loss_scaler");
  const auto scale = scaler ? scaler->Find("cur_scale") : optimizer.Find("cur_scale");
  if (!scale) return;
  result_.loss_scale_ = scale->Number("cur_scale");
  const auto dynamic = optimizer.Find("dynamic_loss_scale");
  if (!dynamic || dynamic->IsNone() || !dynamic->Bool("dynamic_loss_scale")) return;
  // FP16_Optimizer has these beside the scale, and says nothing of hysteresis.
  const PickleValue counters = scaler ? *scaler : optimizer;
  const auto number = [&](const char* key, std::int64_t otherwise) {
    const auto value = counters.Find(key);
    return value && !value->IsNone() ? value->Integer(key) : otherwise;
  };
  result_.dynamic_loss_scale_ = {.scale = *result_.loss_scale_,
                                 .iteration = number("cur_iter", 0),
                                 .last_overflow = number("last_overflow_iter", -1),
                                 .hysteresis_left = number("cur_hysteresis", 1)};
}

void DeepSpeedBuilder::ReadGroup(const Source& source, const PickleValue& state,
                                 GroupState& group) const {
  for (std::size_t s = 1; s < kStates; ++s) {
    if (const auto tensor = state.Find(kStateNames[s])) {
      group.pieces[s] = PieceOf(source, *tensor, kStateNames[s]);
    }
  }
  group.step = Scalar(source, state.Find("step"));
}

// The weights of every group, and the states of torch's optimizer, which has one entry for each.
DeepSpeedBuilder::RankState DeepSpeedBuilder::ReadOptimizerFile(const std::string& path, int rank) {
  const Source source = OpenFile(path);
  const PickleValue optimizer = source.file.root().Get("optimizer_state_dict");
  const auto chunks = optimizer.Find("fp32_flat_groups");
  // BF16_Optimizer is of stage 1 and does not say so.
  const auto told = optimizer.Find("zero_stage");
  const std::int64_t stage = told ? told->Integer("zero_stage") : 1;
  if (stage < 1 || stage > 3 || (stage == 3) != chunks.has_value()) {
    Fail(path, fmt::format("stage {} does not fit what the file holds", stage));
  }
  const PickleValue partitions = optimizer.Get("partition_count");
  const auto check_count = [&](const PickleValue& count) {
    const std::int64_t ranks = count.Integer("partition_count");
    if (ranks == result_.ranks_) return;
    Fail(path, fmt::format("was written by one of {} ranks, but the folder has files of {}", ranks,
                           result_.ranks_));
  };
  if (partitions.kind() == PickleKind::kList) {
    for (std::size_t i = 0; i < partitions.size(); ++i) check_count(partitions[i]);
  } else {
    check_count(partitions);
  }
  if (rank == 0) {
    result_.stage_ = static_cast<int>(stage);
    ReadLossScale(optimizer);
    if (const auto paddings = optimizer.Find("param_alignment_paddings");
        paddings && !paddings->IsNone()) {
      for (std::size_t g = 0; g < paddings->size(); ++g) {
        paddings_.emplace_back();
        for (std::size_t i = 0; i < (*paddings)[g].size(); ++i) {
          paddings_.back().push_back((*paddings)[g][i].Integer("a padding"));
        }
      }
    }
  } else if (stage != result_.stage_) {
    Fail(path, fmt::format("is of stage {}, that of rank 0 of stage {}", stage, result_.stage_));
  }

  const PickleValue weights = chunks ? *chunks : optimizer.Get("single_partition_of_fp32_groups");
  weights.ExpectKind(PickleKind::kList, "the list of fp32 weights");
  RankState groups(weights.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    groups[g].pieces[0] = PieceOf(source, weights[g], "fp32 weights");
  }
  const auto base = optimizer.Find(chunks ? "optimizer_state_dict" : "base_optimizer_state");
  if (!base || base->IsNone()) return groups;
  if (base->kind() == PickleKind::kList) {  // elastic_checkpoint: groups in order, steps apart
    const auto step = Scalar(source, optimizer.Find("base_optimizer_state_step"));
    if (base->size() != groups.size()) base->Unexpected("the list of states", "one for each group");
    for (std::size_t g = 0; g < groups.size(); ++g) {
      ReadGroup(source, (*base)[g], groups[g]);
      if (!groups[g].step) groups[g].step = step;
    }
    return groups;
  }
  const PickleValue states = base->Get("state");
  states.ExpectKind(PickleKind::kDict, "state");
  for (std::size_t i = 0; i < states.size(); ++i) {
    const std::int64_t g = states.KeyAt(i).Integer("the number of a state");
    if (g < 0 || g >= std::ssize(groups)) {
      Fail(path, fmt::format("has a state of group {} but weights of {}", g, groups.size()));
    }
    ReadGroup(source, states.ValueAt(i), groups[static_cast<std::size_t>(g)]);
  }
  return groups;
}

void DeepSpeedBuilder::Build() {
  result_.folder_ = files_.folder;
  result_.universal_ = files_.universal;
  if (!files_.model.contains(0)) Fail(files_.folder, "the model file of rank 0 is missing");
  const Source model = OpenFile(files_.model.at(0));
  const PickleValue root = model.file.root();
  ReadModelFile(root, model.file.path());
  if (files_.universal) {
    BuildUniversal();
  } else if (files_.optimizer.empty()) {
    if (has_groups_) {
      Fail(files_.folder, "holds no *_optim_states.pt, which have the fp32 weights");
    }
    const auto writers = root.Find("dp_world_size");
    if (writers && !writers->IsNone()) {
      result_.ranks_ = static_cast<int>(writers->Integer("dp_world_size"));
    }
    BuildStage0(model);
    return;
  } else {
    if (!has_groups_) Fail(model.file.path(), "has no param_shapes");
    result_.ranks_ = files_.optimizer.rbegin()->first + 1;
    if (std::ssize(files_.optimizer) != result_.ranks_) {
      Fail(files_.folder, fmt::format("{} optimizer files, but one of rank {}",
                                      files_.optimizer.size(), result_.ranks_ - 1));
    }
    std::vector<RankState> ranks;
    for (const auto& [rank, path] : files_.optimizer) {
      ranks.push_back(ReadOptimizerFile(path, rank));
      if (ranks.back().size() != ranks.front().size()) {
        Fail(path, fmt::format("has {} groups, that of rank 0 {}", ranks.back().size(),
                               ranks.front().size()));
      }
    }
    if (result_.stage_ == 3) {
      BuildChunks(ranks);
    } else {
      BuildFlat(ranks);
    }
  }
  if (result_.stage_ == 3) AddFrozenChunks();
  AddShared(root, model.file.path());
  AddFromModule(model);
}

}  // namespace ullage::files
