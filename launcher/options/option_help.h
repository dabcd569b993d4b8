// SPDX-License-Identifier: Apache-2.0
// ivyrun's help, made from the table of flags. Thread: any.
#pragma once

#include <string>

#include "proto/contract/status.h"
#include "proto/pages/command_page.h"

namespace ivy {

// Returns a few lines with two examples, for a call without arguments.
std::string short_help();

// Returns the table in the form used for help, completions and the documentation.
CommandPage ivyrun_page();

// Returns the text of --help TOPIC: "all", a topic, or a flag; the common flags if empty. The
// message of NotFound lists the topics.
Result<std::string> help_about(const std::string& topic);

// Returns the text of --generate FORM: markdown, bash, zsh, fish, or coming-from (the page about
// other launchers' flags).
Result<std::string> generated_text(const std::string& form);

}  // namespace ivy
