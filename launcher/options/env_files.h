// Reads the files of --env-file. Thread: any.
#pragma once

#include <string>
#include <vector>

#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

// Larger files are not lists of variables.
inline constexpr std::size_t kMaxEnvFileBytes = 1u << 20;

// The variables of all files, later ones winning. Errors name the file, the line and the
// column; the grammar: env_file_grammar.h.
Result<Environment> read_env_files(const std::vector<std::string>& paths,
                                   const Environment& caller);

}  // namespace ivy
