#include "launch/outputs.h"

#include <cerrno>
#include <cstring>
#include <filesystem>

#include <unistd.h>

#include "cuboid/formats/megatron.h"
#include "cuboid/formats/run_file.h"

namespace cuboid::launch {
namespace fs = std::filesystem;
namespace {

// Why no file can be made in `folder` (which may itself have to be made); empty if it can.
std::string obstacle_to(fs::path folder) {
  std::error_code fault;
  folder = fs::absolute(folder, fault);
  while (!fs::exists(folder, fault) && folder.has_parent_path() && folder != folder.root_path()) {
    if (fault) return folder.string() + ": " + fault.message();
    folder = folder.parent_path();
  }
  if (!fs::is_directory(folder, fault)) return folder.string() + " is not a folder";
  if (access(folder.c_str(), W_OK | X_OK) != 0) return folder.string() + ": " + std::strerror(errno);
  return "";
}

std::string absolute_if_there(const std::string& path) {
  std::error_code fault;
  return !path.empty() && fs::exists(path, fault) ? fs::absolute(path).lexically_normal().string() : path;
}

}  // namespace

void check_new_file(const std::string& flag, const std::string& path, Problems& problems) {
  if (path.empty()) return;
  std::error_code fault;
  const fs::path file = fs::absolute(path);
  const auto refuse = [&](const std::string& why) { problems.add(flag + " " + path + ": " + why); };
  if (fs::is_directory(file, fault)) {
    refuse("is a folder");
  } else if (!fs::exists(file.parent_path(), fault)) {
    refuse("there is no folder " + file.parent_path().string());
  } else if (const auto why = obstacle_to(file.parent_path()); !why.empty()) {
    refuse(why);
  }
}

void check_outputs(const RunConfig& run, Problems& problems) {
  if (run.out.empty()) {
    problems.add_if(run.keep > 0,
                    "--keep " + std::to_string(run.keep) + ": keeps checkpoints in --out; give --out DIR");
    problems.add_if(run.async_save, "--async-save: writes checkpoints into --out; give --out DIR");
  } else if (const auto why = obstacle_to(run.out); !why.empty()) {
    problems.add("--out " + run.out + ": " + why);
  }
  check_new_file("--dump-grads", run.dump_grads, problems);
}

RunConfig with_absolute_paths(RunConfig run) {
  for (auto& path : run.data.paths) {
    // A Megatron prefix is no file by itself.
    path = MegatronIndex::is_pair(path) ? fs::absolute(path).lexically_normal().string() : absolute_if_there(path);
  }
  run.data.mask_file = absolute_if_there(run.data.mask_file);
  run.weights = absolute_if_there(run.weights);
  // A preset's name is looked up before folders are: only what was read from a path becomes one.
  if (run.model.find('/') != std::string::npos) run.model = absolute_if_there(run.model);
  for (std::string* made : {&run.out, &run.dump_grads}) {
    if (!made->empty()) *made = fs::absolute(*made).lexically_normal().string();
  }
  return run;
}

std::unique_ptr<FolderLock> make_output_folder(const RunConfig& run) {
  std::error_code fault;
  fs::create_directories(run.out, fault);
  if (fault) throw Error(ErrorKind::request, "--out " + run.out + ": " + fault.message());
  auto lock = FolderLock::take((fs::path(run.out) / ".lock").string());
  const std::string path = (fs::path(run.out) / "run.toml").string();
  try {
    write_durably(path, write_run_file(with_absolute_paths(run)));
  } catch (const Error& error) {
    throw Error(ErrorKind::request, std::string("--out: ") + error.what());
  }
  return lock;
}

}  // namespace cuboid::launch
