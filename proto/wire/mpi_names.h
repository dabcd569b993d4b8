// The names under which MPI's libraries know one generation of a job. Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ivy {

// The same on every host. Any user of a host can connect to libpmix's port on loopback and claim to
// be somebody else, but a peer that does not know the name is refused: a part of it follows from
// the `secret` that the hosts of the job share, from which nobody else can tell it.
std::string pmix_namespace(const std::string& job_id, std::uint32_t generation,
                           std::string_view secret);

// The job's name in PMI-1, a word.
std::string pmi_name(const std::string& job_id, std::uint32_t generation);

// The files in /dev/shm that MPICH 5 makes for the ranks of a host, and leaves there when a rank
// aborts or is killed: it derives their names from PMI's.
std::vector<std::string> mpich_segments(std::string_view pmi_name, std::uint32_t host);

// The warning for a user whose rank calls MPI_Comm_spawn.
std::string spawn_refused(std::uint32_t rank);

// Where the segments of libpmix lie: in this directory of the user in `place` (/dev/shm but in
// tests), each server's in one of its own, which begins so and goes on JOB-HOST-GENERATION. The
// server holds its lock.
inline std::string pmix_segments_parent(const std::string& place, std::uint32_t uid) {
  return place + "/ivyrun-" + std::to_string(uid);
}
inline constexpr std::string_view kPmixSegments = "pmix-";

}  // namespace ivy
