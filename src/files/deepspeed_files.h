// Where the files of a DeepSpeed checkpoint are, by their names. Internal to the room.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "files/file_system.h"

namespace ullage::files {

// The folder of one checkpoint. Paths by rank.
struct DeepSpeedFiles {
  std::string folder;
  std::map<int, std::string> model;      // one file up to stage 2, every rank's at stage 3
  std::map<int, std::string> optimizer;  // every rank's; none at stage 0
  bool universal = false;                // parameters are in folder/zero/NAME/
};

// Takes the folder that save_checkpoint was given, whose file `latest` names the newest checkpoint
// (`latest_universal` the newest that was converted), or that of one checkpoint. nullopt when it is
// neither. Throws IoError for a `latest` that names nothing in the folder and for a rank that has
// two files, UnsupportedError for models that were split by tensors, layers or experts.
std::optional<DeepSpeedFiles> FindDeepSpeedFiles(FileSystem& fs, const std::string& directory,
                                                 bool prefer_universal = false);

}  // namespace ullage::files
