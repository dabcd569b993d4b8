// SPDX-License-Identifier: Apache-2.0
// The names of one generation of a job for MPI libraries. Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ivy {

// Returns the job's PMIx namespace, the same on every host. Any user of a host can connect to
// libpmix's port on loopback and claim to be another process, but a peer that does not know the
// name is rejected. Part of the name is derived from the `secret`, which only the hosts of the job
// share.
std::string pmix_namespace(const std::string& job_id, std::uint32_t generation,
                           std::string_view secret);

// Returns the job's name in PMI-1, a single word.
std::string pmi_name(const std::string& job_id, std::uint32_t generation);

// Returns the names of the files in /dev/shm that MPICH 5 creates for the ranks of a host, and
// leaves there if a rank aborts or is killed. MPICH derives them from PMI's name.
std::vector<std::string> mpich_segments(std::string_view pmi_name, std::uint32_t host);

// Returns the warning for a user whose rank calls MPI_Comm_spawn.
std::string spawn_rejected(std::uint32_t rank);

// Returns the user's directory of libpmix's segments in `parent` (/dev/shm except in tests). Each
// server has a subdirectory there, kPmixSegments + JOB-HOST-GENERATION, and holds its lock.
inline std::string pmix_segments_parent(const std::string& parent, std::uint32_t uid) {
  return parent + "/ivyrun-" + std::to_string(uid);
}
inline constexpr std::string_view kPmixSegments = "pmix-";

}  // namespace ivy
