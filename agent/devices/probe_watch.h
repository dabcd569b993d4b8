// SPDX-License-Identifier: Apache-2.0
// `ivy-probe watch`, which runs next to a job's workers: keeps a first reading of the devices'
// health and reports changes on request (watch_answer.h). Thread: the main thread.
#pragma once

#include <string>

namespace ivy {

// Serves standard input until end of file, then exits.
[[noreturn]] void run_watch(const std::string& root);

// Returns all readings of this host as text for people.
std::string health_text(const std::string& root);

}  // namespace ivy
