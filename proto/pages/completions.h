// SPDX-License-Identifier: Apache-2.0
// Shell completion. A script for each shell runs `PROGRAM --complete WORD...`, where the words are
// those of the command line after the program's name, up to the cursor; the program completes the
// last one, which may be empty. Its output is one of these, always with line ends:
//
//   WORD<tab>DESCRIPTION  one line per completion; the tab and the description may be missing
//   @files                the shell completes the name of a file
//   @directories          the shell completes the name of a directory
//   @program N            word N of the command line (PROGRAM is word 0) is the name of another
//                         program, and the shell completes what follows as that program's arguments
//   (nothing)             no completion is known
//
// The scripts and the program are installed separately, so a change must keep old scripts working.
// Pure; thread: any.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/pages/command_page.h"

namespace ivy {

// Returns the words that a shell may offer for a value of this name, such as "JOB" or "ID"; none if
// the name is unknown.
using ValueSource = std::function<std::vector<std::string>(std::string_view value)>;

// Returns the output of `PROGRAM --complete WORD...`.
std::string completions(const CommandPage& page, const std::vector<std::string>& words,
                        const ValueSource& source = {});

// Returns the output of `PROGRAM --generate FORM`: the page as Markdown, or the script for a shell.
// Returns nothing if `form` is unknown.
std::optional<std::string> generated_page(const CommandPage& page, std::string_view form);
inline constexpr std::string_view kGeneratedForms = "markdown, bash, zsh or fish";

}  // namespace ivy
