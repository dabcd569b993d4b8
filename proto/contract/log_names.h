// SPDX-License-Identifier: Apache-2.0
// Names of the files with the ranks' raw output. They are the same below --log-dir, where the
// launcher writes, and on the ranks' own hosts (--log-to node). Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>

namespace ivy {

// Returns the directory of one generation's files.
std::string log_folder(const std::string& directory, const std::string& job_id,
                       std::uint32_t generation);
// Returns the name of the file of a rank's stream (1 or 2) in it, such as "rank00027.err".
std::string log_file_name(int rank, int stream);

}  // namespace ivy
