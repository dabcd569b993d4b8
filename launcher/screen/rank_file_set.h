// SPDX-License-Identifier: Apache-2.0
// A set of files that store the ranks' output as raw bytes:
// DIR/<job>/<generation>/rank00027.{out,err} for --log-dir, or files named by the pattern of
// --output, in which both streams of a rank may share a file. A separate thread opens and writes
// them (proto/os/file_writer.h), so a hanging file system stops neither heartbeats nor the console.
// A full disk is reported once per generation, and the job continues. Thread: the loop's.
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

#include "proto/contract/log_names.h"
#include "proto/contract/status.h"
#include "proto/os/file_writer.h"

namespace ivy {

// Makes DIR/latest a link to the newest job's directory. A file of that name that is not a link is
// kept. A failure is ignored.
void link_latest(const std::string& directory, const std::string& job_id);

// Returns the function with which a FileWriter opens a log file; it returns -errno on failure.
// Other users may have access to the directory, so a link in place of the file is not followed.
// size: receives the size of the file when it was opened.
FileWriter::Opener log_opener(const std::string& path, bool appends,
                              std::shared_ptr<std::uint64_t> size = nullptr);

// Implemented by class Output, which owns the files.
class FileEvents {
 public:
  // take_done() has new results. Called on a writer's thread, where it may only wake the loop.
  virtual void file_progressed() = 0;

 protected:
  ~FileEvents() = default;
};

class RankFileSet {
 public:
  // Maximum bytes waiting to be written; see has_room().
  static constexpr std::size_t kMaxQueuedBytes = 8u << 20;
  // How long the destructor waits for the files to be closed.
  static constexpr std::chrono::milliseconds kCloseLimit{200};

  explicit RankFileSet(FileEvents& owner)
      : writer_(kMaxQueuedBytes, [&owner] { owner.file_progressed(); }) {}
  // Gives a responsive file system kCloseLimit to close the files.
  ~RankFileSet();
  RankFileSet(const RankFileSet&) = delete;
  RankFileSet& operator=(const RankFileSet&) = delete;

  struct Request {
    std::string flag;  // The flag that messages name: "--log-dir" or "--output".
    // Paths by rank and stream. Both streams of a rank may have the same path.
    std::map<int, std::array<std::string, 2>> paths = {};
    std::set<std::string> folders = {};  // Directories to make in addition to those of the files.
    bool appends = false;                // Existing files are kept and appended to, not emptied.
    // Called on the writer's thread once the directories exist.
    std::function<void()> on_folders = {};
  };
  // Makes the directories and opens the files. take_done() calls `opened` once, with
  // ResourceExhausted, PermissionDenied or InvalidArgument and the path on failure; no file is open
  // then. The next open_all() cancels a call that has not been answered.
  void open_all(const Request& request, std::function<void(const Result<void>&)> opened);
  bool is_open() const { return !ranks_.empty(); }
  // Appends the bytes. After a failure, which write_error() reports, the file gets nothing more: a
  // log never has a gap.
  void write(int rank, int stream, std::string_view bytes);
  // Call when the file gets no more bytes.
  void close(int rank, int stream);
  const std::string& path(int rank, int stream) const;  // Empty if the stream has none.
  // Returns the size that the file had when it was opened for appending.
  std::uint64_t size_at_open(int rank, int stream) const;
  // Describes the first failed write; empty: none.
  const std::string& write_error() const { return write_error_; }

  // Handles the writer's results since the last call.
  void take_done();
  // False while too many bytes wait for the file system.
  bool has_room() const { return writer_.has_room(); }
  // True if all bytes are in the files or have failed, and no open_all() is unanswered.
  bool is_idle() const { return writer_.is_idle() && !opened_; }
  std::uint64_t written() const { return written_; }

 private:
  struct File {
    FileWriter::File file = 0;  // 0 if closed. Both streams of a rank may share a file.
    std::string path;
    std::shared_ptr<std::uint64_t> size;
  };
  // An open file of the writer, for messages.
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
  // By the writer's number, until the writer has closed the file.
  std::map<FileWriter::File, Name> names_;
  std::size_t opening_ = 0;            // Files of open_all() that have not been answered yet...
  FileWriter::File first_opened_ = 0;  // ...and the number of the first of them.
  std::optional<Error> open_error_;
  std::function<void(const Result<void>&)> opened_;
  std::string write_error_;
  std::uint64_t written_ = 0;
};

}  // namespace ivy
