#include "cli/arguments.h"

#include <CLI/CLI.hpp>
#include <limits>
#include <map>

#include "base/bytes.h"
#include "ullage/error.h"

namespace ullage::cli {
namespace {

constexpr std::int64_t kMany = std::numeric_limits<std::int64_t>::max();
constexpr int kMostRanks = 4096;
constexpr int kMostThreads = 1024;

const char* const kAbout =
    "Trains Transformers in the memory you have. Weights, gradients and optimizer state are "
    "divided\n"
    "over ranks (ZeRO stages 0 to 3) without changing a bit of the result.";

// Prints as "--batch N  text"; the default stands in the text, with its unit.
template <typename T>
CLI::Option* Number(CLI::App* app, const std::string& name, T& value, T least, T most,
                    const std::string& about) {
  return app->add_option(name, value, about)
      ->check(CLI::Range(least, most).description(""))
      ->type_name("N");
}

CLI::Option* Path(CLI::App* app, const std::string& name, std::string& value,
                  const std::string& kind, const std::string& about) {
  return app->add_option(name, value, about)->type_name(kind);
}

void AddDType(CLI::App* app, const std::string& name, DType& value, const std::string& about) {
  static const std::map<std::string, DType> kNames = {
      {"fp32", DType::kFloat32}, {"bf16", DType::kBFloat16}, {"fp16", DType::kFloat16}};
  app->add_option_function<std::string>(
         name, [&value](const std::string& text) { value = kNames.at(text); }, about)
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}).description(""))
      ->type_name("TYPE");
}

void AddDevice(CLI::App* app, bool& cuda) {
  app->add_option_function<std::string>(
         "--device", [&cuda](const std::string& text) { cuda = text == "cuda"; },
         "where to compute: cpu or cuda (cpu)")
      ->check(CLI::IsMember({"cpu", "cuda"}).description(""))
      ->type_name("DEVICE");
}

void AddRanks(CLI::App* app, int& ranks, int& threads) {
  Number(app, "--ranks", ranks, 1, kMostRanks,
         "processes to start on this machine (1); leave it out under torchrun, mpirun or srun");
  Number(app, "--threads", threads, 1, kMostThreads,
         "threads of each rank (cores / ranks, or OMP_NUM_THREADS); results are repeated bit for "
         "bit at the same number");
}

void AddLengths(CLI::App* app, std::int64_t& max_length, std::int64_t& sequence_length) {
  Number(app, "--max-length", max_length, std::int64_t{2}, kMany,
         "tokens, classification: longer records are cut (none is cut)");
  Number(
      app, "--sequence-length", sequence_length, std::int64_t{2}, std::int64_t{1'000'000},
      "tokens, causal and instruct: documents are packed into rows of this length, which are the "
      "records of the batch sizes (1024, or the model's positions if fewer)");
}

void AddTrain(CLI::App* app, TrainArguments& a) {
  Path(app, "--model", a.model, "DIR", "Hugging Face model directory to start from")->required();
  Path(app, "--train", a.train, "FILE", "token file of ullage-prepare to train on")->required();
  Path(app, "--eval", a.eval, "FILE",
       "token file to measure loss and accuracy, or perplexity, on (none)");
  Path(app, "--config", a.config, "FILE", "settings: a ds_config.json")->required();
  Path(app, "--output", a.output, "DIR",
       "where the trained model goes; new, empty, or the output of an earlier run")
      ->required();
  Path(app, "--report", a.report, "FILE", "also write the run's numbers as JSON (none)");
  CLI::Option* steps = Number(app, "--steps", a.steps, std::int64_t{1}, kMany,
                              "optimizer steps to train (as many as --epochs makes)");
  Number(app, "--epochs", a.epochs, std::int64_t{1}, std::int64_t{1'000'000},
         "times to go over the data (1)")
      ->excludes(steps);
  AddRanks(app, a.ranks, a.threads);
  app->add_option("--seed", a.seed, "of the data's order, dropout and new weights (42)")
      ->type_name("N");
  AddDevice(app, a.cuda);
  AddLengths(app, a.max_length, a.sequence_length);
  Number(app, "--pad-to-multiple-of", a.pad_to_multiple_of, std::int64_t{1}, std::int64_t{65536},
         "tokens; a batch is padded to its longest record, rounded up to this (1)");
  Number(app, "--eval-every", a.eval_every, std::int64_t{1}, kMany,
         "steps between evaluations; the best model, by accuracy or perplexity, is kept in "
         "OUTPUT/best (after each epoch and at the end, keeping no best)");
  Number(app, "--eval-batch", a.eval_batch, std::int64_t{1}, std::int64_t{1'000'000},
         "records in one forward of an evaluation on one rank (the micro batch)");
  Number(app, "--num-labels", a.num_labels, 2, 1'000'000, "classes (as the token file says)");
  app->add_option(
         "--allow-missing", a.allow_missing,
         "regular expression: weights that the model directory may lack or have in another "
         "shape and that start anew; may be repeated (none; a head that is missing as a "
         "whole starts anew by itself)")
      ->type_name("PATTERN")
      ->allow_extra_args(false);
  app->add_flag_callback(
      "--no-group-by-length", [&a] { a.group_by_length = false; },
      "mix records of all lengths in a batch (records of like length go together)");
  Number(app, "--save-every", a.save_every, std::int64_t{1}, kMany,
         "steps between checkpoints in OUTPUT/checkpoints, from which --resume goes on; one is "
         "written at the end, too (no checkpoints)");
  Number(app, "--keep", a.keep, std::int64_t{1}, std::int64_t{1'000'000},
         "checkpoints to keep, the newest ones (2)");
  app->add_option_function<std::string>(
         "--save-buffer",
         [&a](const std::string& text) {
           try {
             a.save_buffer = ParseBytes(text);
           } catch (const ConfigError& error) {
             throw CLI::ValidationError("--save-buffer", error.what());
           }
         },
         "host memory of each rank for state that changes before it is written: a checkpoint is "
         "written while training goes on, and steps wait where this is too small (256MiB)")
      ->type_name("SIZE");
  CLI::Option* resume = app->add_flag(
      "--resume", a.resume,
      "go on from the last complete checkpoint of OUTPUT, on any number of ranks; from the start "
      "while there is none (off)");
  Path(app, "--resume-from", a.resume_from, "DIR",
       "go on from this checkpoint, or the last complete one of this folder; it may be one of "
       "DeepSpeed (none)")
      ->excludes(resume);
  AddDType(app, "--export-dtype", a.export_dtype,
           "of the written weights: fp32, bf16, fp16 (fp32)");
}

void AddPlan(CLI::App* app, PlanArguments& a) {
  Path(app, "--model", a.model, "DIR_OR_CONFIG", "model directory, or its config.json alone")
      ->required();
  Path(app, "--config", a.config, "FILE", "settings: a ds_config.json")->required();
  CLI::Option* train =
      Path(app, "--train", a.train, "FILE",
           "token file: plan for its longest record, and with --device say how many records of "
           "which length fit (none)");
  Number(app, "--ranks", a.ranks, 1, kMostRanks, "ranks to plan for (1)");
  Number(app, "--rank", a.rank, 0, kMostRanks - 1, "rank to run dry, from 0 (0)");
  Number(app, "--micro-batch", a.micro_batch, std::int64_t{1}, std::int64_t{1'000'000},
         "records in one forward on one rank (as the settings say)");
  Number(app, "--sequence-length,--seq", a.sequence, std::int64_t{1}, std::int64_t{1'000'000},
         "tokens of each record (128, for language models 1024; or the model's positions if fewer)")
      ->excludes(train);
  app->add_option(
         "--operator-bytes", a.operator_bytes,
         "of ullage.device_memory, what is kept for operators: activations, workspaces; as "
         "in 12GiB (as predicted). ullage train measures it")
      ->type_name("BYTES");
  app->add_option_function<std::string>(
         "--device",
         [&a](const std::string& text) {
           a.cuda = text == "cuda";
           if (text != "cuda" && text != "cpu") a.device = text;
         },
         "where to compute, and what to fit into: cpu, cuda, a CUDA device by name (a100-40g, "
         "h200, "
         "...; a wrong name lists them), or the bytes of one, as in 38GiB (cpu)")
      ->type_name("DEVICE");
  app->add_flag("--json", a.json, "print JSON");
}

void AddEvaluate(CLI::App* app, EvaluateArguments& a) {
  Path(app, "--model", a.model, "DIR",
       "Hugging Face model directory, for a classifier with its head")
      ->required();
  Path(app, "--eval", a.eval, "FILE", "token file of ullage-prepare")->required();
  Number(app, "--batch", a.batch, std::int64_t{1}, std::int64_t{1'000'000},
         "records in one forward on one rank (32)");
  AddLengths(app, a.max_length, a.sequence_length);
  AddRanks(app, a.ranks, a.threads);
  AddDevice(app, a.cuda);
  app->add_flag("--json", a.json, "print JSON");
}

void AddExport(CLI::App* app, ExportArguments& a) {
  Path(app, "--model", a.model, "DIR", "Hugging Face model directory")->required();
  Path(app, "--checkpoint", a.checkpoint, "DIR",
       "write the values of this checkpoint, or of the last complete one of this folder; --model "
       "then gives the architecture and the tokenizer (the model's own values)");
  Path(app, "--output", a.output, "DIR",
       "where the copy goes; new, empty, or the output of an earlier run")
      ->required();
  AddDType(app, "--dtype", a.dtype, "of the written weights: fp32, bf16, fp16 (fp32)");
}

void AddInspect(CLI::App* app, InspectArguments& a) {
  app->add_option("path", a.path, "a checkpoint, a folder of them, or the output of a run")
      ->type_name("DIR")
      ->required();
  app->add_flag("--verify", a.verify, "read every byte and compare it with its checksum");
  app->add_flag("--norms", a.norms, "print the L2 norm of every tensor's values (implies reading)");
  app->add_flag("--json", a.json, "print JSON");
}

void AddDoctor(CLI::App* app, DoctorArguments& a) {
  Path(app, "--config", a.config, "FILE", "also say what is wrong in these settings (none)");
  app->add_flag("--json", a.json, "print JSON");
}

}  // namespace

ParsedArguments ParseArguments(int argc, char** argv) {
  CLI::App app(kAbout, "ullage");
  app.require_subcommand(1);
  app.footer("Each command has its own --help.");
  TrainArguments train;
  PlanArguments plan;
  EvaluateArguments evaluate;
  ExportArguments convert;
  InspectArguments inspect;
  DoctorArguments doctor;
  CLI::App* const commands[] = {
      app.add_subcommand("plan", "say how many bytes a training needs, without data or weights"),
      app.add_subcommand("train", "fine-tune a model on a token file"),
      app.add_subcommand("evaluate",
                         "loss and accuracy, or perplexity, of a model on a token file"),
      app.add_subcommand("export", "write a model's weights anew, checked, in another type"),
      app.add_subcommand("inspect", "what a checkpoint holds, and whether it is complete"),
      app.add_subcommand("doctor",
                         "driver, devices, memory and limits of this machine, and what to "
                         "do about them")};
  AddPlan(commands[0], plan);
  AddTrain(commands[1], train);
  AddEvaluate(commands[2], evaluate);
  AddExport(commands[3], convert);
  AddInspect(commands[4], inspect);
  AddDoctor(commands[5], doctor);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool asked = error.get_exit_code() == 0;  // --help
    app.exit(error);
    return {std::nullopt, asked ? 0 : 2};
  }
  if (commands[0]->parsed()) return {plan, 0};
  if (commands[1]->parsed()) return {train, 0};
  if (commands[2]->parsed()) return {evaluate, 0};
  if (commands[3]->parsed()) return {convert, 0};
  if (commands[4]->parsed()) return {inspect, 0};
  return {doctor, 0};
}

}  // namespace ullage::cli
