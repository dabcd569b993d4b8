// SPDX-License-Identifier: Apache-2.0
// The files of --env-file. Thread: any.
//
//   line  := [ 'export ' ] item [ '#' comment ] | '#' comment | nothing
//   item  := NAME                  the caller's value; NAME* stands for all that begin so
//          | NAME '=' plain        to the end of the line; blanks at its end do not count
//          | NAME '=' "'" any "'"  byte for byte
//          | NAME '=' '"' any '"'  byte for byte, but \" \\ \$ and \` lose their backslash
//
// This is the common subset of shells, docker and dotenv files. If these differ, nothing is
// guessed: a plain value with quotes, backslashes or a '$' that a shell would expand is rejected. A
// '#' starts a comment at the start of a line or after a blank.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

// Later lines win. InvalidArgument reads "path:line:column: what"; `path` is only for messages.
Result<Environment> parse_env_file(std::string_view content, const std::string& path,
                                   const Environment& caller);

// The variables of all these files, later ones winning.
Result<Environment> read_env_files(const std::vector<std::string>& paths,
                                   const Environment& caller);

}  // namespace ivy
