// SPDX-License-Identifier: Apache-2.0
// Files of raw bytes: DIR/<job>/<generation>/rank00027.{out,err} for --log-dir, or files named by
// the pattern of --output, in which both streams of a rank may share one. Opened and written on a
// separate thread (proto/os/file_writer.h), so that a hanging file system stops neither heartbeats
// nor the console. A full disk is reported once per generation, and the job continues. Thread: the
// loop's.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"
#include "proto/os/file_writer.h"

namespace ivy {

// Returns the directory of one generation's files below --log-dir, here and on the nodes.
std::string log_folder(const std::string& directory, const std::string& job_id,
                       std::uint32_t generation);
// Makes DIR/latest a link to the newest job's folder. A file of that name that is not a link is
// kept, and a failure is ignored.
void link_latest(const std::string& directory, const std::string& job_id);
// The name of a rank's file in --log-dir: "rank00027.err".
std::string log_file_name(int rank, int stream);

// Makes the opener of a log file for a FileWriter. The folder may be shared with other users, so a
// link in place of the file is not followed. size: receives the former size. -errno on failure.
FileWriter::Opener log_opener(const std::string& path, bool appends,
                              std::shared_ptr<std::uint64_t> size = nullptr);

class LogFiles {
 public:
  // Limit of bytes that wait for the file system: see has_room().
  static constexpr std::size_t kRoomBytes = 8u << 20;
  static constexpr std::chrono::milliseconds kMomentToClose{200};

  // moved: take_done() has new results. Called on the writer's thread; it must only wake the loop.
  explicit LogFiles(std::function<void()> moved);
  // Allows a responsive file system a moment to close the files.
  ~LogFiles();
  LogFiles(const LogFiles&) = delete;
  LogFiles& operator=(const LogFiles&) = delete;

  struct Request {
    std::string flag;  // The flag that messages name: "--log-dir" or "--output".
    std::map<int, std::array<std::string, 2>> paths = {};  // For each rank, by stream.
    std::set<std::string> folders = {};     // In addition to the folders of the files.
    bool appends = false;                   // Appends to existing files.
    std::function<void()> on_folders = {};  // Once their folders are there; on the writer's thread.
  };
  // Makes the folders and empties (appends: keeps) or makes the files. take_done() calls `opened`
  // once: ResourceExhausted, PermissionDenied or InvalidArgument with the path, and then no file is
  // open. An answer that has not come is forgotten by the next open_all().
  void open_all(const Request& request, std::function<void(const Result<void>&)> opened);
  bool is_open() const { return !ranks_.empty(); }
  // Appends. The first failure is kept for complaint(), and the file gets nothing more, so that it
  // is never a text with a hole.
  void write(int rank, int stream, std::string_view bytes);
  // The file will get no more bytes.
  void close(int rank, int stream);
  const std::string& path(int rank, int stream) const;  // May be empty.
  // Bytes that an appended file had when it was opened.
  std::uint64_t size_at_open(int rank, int stream) const;
  const std::string& complaint() const { return complaint_; }

  // Handles the results of the writer's thread since the last call.
  void take_done();
  bool has_room() const { return writer_.has_room(); }
  // Everything is in the files, or has failed.
  bool is_idle() const { return writer_.is_idle() && !opened_; }
  std::uint64_t written() const { return written_; }

 private:
  struct File {
    FileWriter::File file = 0;  // 0: closed. Both streams of a rank may have the same.
    std::string path;
    std::shared_ptr<std::uint64_t> size;
  };
  struct Name {
    std::string path;
    bool is_folder = false;
    bool failed = false;
  };
  void open_rank(int rank, const Request& request);
  void open_folders(const Request& request);
  void close_all();
  void failed(const Name& name, const FileWriter::Done& done);
  void answer();

  FileWriter writer_;
  std::string flag_;
  std::map<int, std::array<File, 2>> ranks_;
  std::map<FileWriter::File, Name> names_;  // Names of the files that the writer has not closed.
  std::size_t opening_ = 0;                 // Files of open_all() without an answer yet...
  FileWriter::File first_opened_ = 0;       // ...and the number of the first of them.
  std::optional<Error> open_error_;
  std::function<void(const Result<void>&)> opened_;
  std::string complaint_;
  std::uint64_t written_ = 0;
};

}  // namespace ivy
