// SPDX-License-Identifier: Apache-2.0
// ivy-probe beside a job's workers: keeps a reading of the devices' health from their start, and
// says what has changed when it is asked (watch_answer.h). Thread: the process's first.
#pragma once

#include <string>

namespace ivy {

// Serves standard input until its end, and ends the process.
[[noreturn]] void run_watch(const std::string& root);

// For people: everything that can be read on this host, as text.
std::string health_text(const std::string& root);

}  // namespace ivy
