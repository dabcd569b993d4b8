// One file per rank and stream: DIR/<job>/<generation>/rank00027.{out,err}, raw bytes.
// A full disk costs one complaint per generation; the job goes on. Thread: the loop's.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "proto/status.h"

namespace ivy {

// Where the files of one generation lie below --log-dir, here and on the nodes.
std::string log_folder(const std::string& directory, const std::string& job_id,
                       std::uint32_t generation);
// "rank00027.err"
std::string log_file_name(int rank, int stream);

class LogFiles {
 public:
  LogFiles() = default;
  ~LogFiles();
  LogFiles(const LogFiles&) = delete;
  LogFiles& operator=(const LogFiles&) = delete;

  // Makes the folder and empties (appends: keeps) or makes two files for each rank.
  // ResourceExhausted, PermissionDenied or InvalidArgument with the path; then no file is open.
  Result<void> open_all(const std::string& directory, const std::string& job_id,
                        std::uint32_t generation, const std::vector<int>& ranks,
                        bool appends = false);
  bool is_open() const { return !ranks_.empty(); }
  // Appends. The first failure is kept for complaint(), and the file gets nothing more, so that it
  // is never a text with a hole.
  void write(int rank, int stream, std::string_view bytes);
  // The file will get no more bytes.
  void close(int rank, int stream);
  std::string path(int rank, int stream) const;  // Empty when there is none.
  const std::string& complaint() const { return complaint_; }

 private:
  struct File {
    int fd = -1;
    bool failed = false;
  };
  void close_all();
  std::string name(int rank, int stream) const;

  std::string folder_;
  std::map<int, std::array<File, 2>> ranks_;
  std::string complaint_;
  std::size_t failed_files_ = 0;
};

}  // namespace ivy
