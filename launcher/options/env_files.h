// SPDX-License-Identifier: Apache-2.0
// The files of --env-file. Thread: any.
//
//   line  := [ 'export ' ] item [ '#' comment ] | '#' comment | nothing
//   item  := NAME                  the caller's value; NAME* means all names with this prefix
//          | NAME '=' plain        to the end of the line, without trailing blanks
//          | NAME '=' "'" any "'"  byte for byte
//          | NAME '=' '"' any '"'  byte for byte, but \" \\ \$ and \` lose their backslash
//
// This is the common subset of shells, docker and dotenv files. Where these differ, a value is
// rejected rather than guessed: quotes or backslashes in a plain value, and, outside '...', a '$'
// or '`' that a shell would expand. A '#' starts a comment at the start of a line or after a blank.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

// Later lines take precedence. InvalidArgument reads "path:line:column: what"; `path` is only used
// in messages.
Result<Environment> parse_env_file(std::string_view content, const std::string& path,
                                   const Environment& caller);

// Returns the variables of all these files; later files take precedence.
Result<Environment> read_env_files(const std::vector<std::string>& paths,
                                   const Environment& caller);

}  // namespace ivy
