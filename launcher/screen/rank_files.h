// SPDX-License-Identifier: Apache-2.0
// The files that store the ranks' output, of --log-dir and of --output. Thread: the loop's.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/options/options.h"
#include "launcher/screen/rank_file_set.h"

namespace ivy {

// The host of a rank, for its label and its files.
struct RankLocation {
  int rank = 0;
  int local_rank = 0;
  int host_index = 0;  // Identifies the host; the same in every generation.
  std::string host;
};

class RankFiles {
 public:
  explicit RankFiles(FileEvents& owner) : log_dir_(owner), pattern_(owner) {}

  struct Request {
    const OutputOptions& options;
    std::string job_id;
    std::uint32_t generation = 0;
    std::vector<RankLocation> locations;
    bool appends = false;  // A launcher that has taken the job over appends to existing files.
  };
  // Opens the files of both flags; see RankFileSet::open_all() for the errors.
  void open(const Request& request, std::function<void(const Result<void>&)> opened);
  void write(int rank, int stream, std::string_view bytes);
  void close(int rank, int stream);
  // Returns the path of the file below --log-dir, or else of --output; empty: none.
  const std::string& path(int rank, int stream) const;
  // Returns the size that the file below --log-dir had when it was opened, or nullopt if there is
  // no such file.
  std::optional<std::uint64_t> size_at_open(int rank, int stream) const;
  std::vector<std::string> output_errors() const;

  void take_done();
  bool has_room() const { return log_dir_.has_room() && pattern_.has_room(); }
  bool is_idle() const { return log_dir_.is_idle() && pattern_.is_idle(); }
  std::uint64_t written() const { return log_dir_.written() + pattern_.written(); }

 private:
  RankFileSet log_dir_;
  RankFileSet pattern_;
};

}  // namespace ivy
