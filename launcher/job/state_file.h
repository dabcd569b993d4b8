// The file of --metrics-file, replaced as a whole every 15 s and at the end of the job. Written on
// a thread: a file system that does not answer costs the file, not the job. Thread: the loop's.
// Lifetime: destroy it outside its handlers.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "proto/os/file_writer.h"

namespace ivy {

class StateFile {
 public:
  // Calls its argument with the file's text, at once or later.
  using Ask = std::function<void(std::function<void(const std::string& text)>)>;

  // path: empty: no such file.
  StateFile(boost::asio::io_context& loop, std::string path);
  // The workers are about to run: writes a second later, and once in each period.
  void begin(Ask ask);
  // Writes the last text, and waits a moment for it.
  void end(const std::string& text);
  bool is_wanted() const { return !path_.empty(); }
  // Why the file is not what it should be; empty: it is.
  std::string complaint();

 private:
  void write();
  void replace(std::string_view text);
  void schedule(std::chrono::seconds time);
  void take_done();

  const std::string path_;
  FileWriter writer_;
  boost::asio::steady_timer timer_;
  Ask ask_;
  int errno_value_ = 0;
};

}  // namespace ivy
