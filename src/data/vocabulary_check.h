// Whether every token id and every token's label of a file is in a model's vocabulary.
#pragma once

#include <cstdint>

#include "files/token_file.h"

namespace ullage::data {

// Reads the whole file, a piece at a time. Throws ConfigError that names record and token, IoError
// when the file cannot be read.
void CheckVocabulary(const files::TokenFile& file, std::int64_t vocab_size);

}  // namespace ullage::data
