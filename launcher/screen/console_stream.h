// SPDX-License-Identifier: Apache-2.0
// A console, and the queue of workers' output that waits for it. Decides which bytes are shown now,
// which wait, which are dropped, and when unfinished lines and progress bars appear.
//
// accept() shows bytes immediately while the console has room; later bytes go through a ChunkQueue,
// so that their order is kept. One timer serves everything that appears later: unfinished lines,
// the states of progress bars, held lines and the footer (console.h explains these words).
//
// Thread: the loop's. Lifetime: destroy it outside its events; sources outlive their generation.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/options/options.h"
#include "launcher/screen/chunk_queue.h"
#include "launcher/screen/console.h"

namespace ivy {

class ConsoleStream;

// The owner of the streams: their Output.
class ConsoleStreamEvents {
 public:
  // Bytes of a host's output were written or dropped.
  virtual void stream_consumed(int host_index, std::uint64_t bytes) = 0;
  // is_idle() may have become true.
  virtual void stream_progressed() = 0;
  // Called once. From then on all output is consumed without being shown.
  virtual void stream_failed(const ConsoleStream& stream, int errno_value) = 0;

 protected:
  ~ConsoleStreamEvents() = default;
};

class ConsoleStream final : private ConsoleEvents {
 public:
  ConsoleStream(boost::asio::io_context& loop, int fd, const OutputOptions& options,
                ConsoleStreamEvents& owner);
  ~ConsoleStream() { *alive_ = false; }

  // Begins a generation: shows the queued bytes of the last one and forgets its sources. is_single:
  // only one rank is shown, without a label, and its bytes are not changed.
  void begin(bool is_single);
  // Gives the source its number and its filter.
  void add(OutputSource& source);
  // Shows or queues bytes of a source. end: the source's stream ends with them.
  void accept(OutputSource& source, std::string_view bytes, bool end);
  // Terminates the unfinished lines of all sources, after the queued bytes.
  void end_sources();
  // Writes the formatted text, then shows as many queued bytes as there is room for.
  void flush();
  // As in Console.
  void print(std::string_view text);
  void set_status(const std::string& text);

  bool is_idle() const { return queue_.empty() && console_.is_idle(); }
  void check_reader() { console_.check_reader(); }
  std::uint64_t written() const { return console_.written(); }
  // True if the source's last output is among the last few lines of this console, where the user
  // can read it.
  bool was_just_printed(const OutputSource& source) const;

 private:
  // ConsoleEvents
  void console_consumed(int host_index, std::uint64_t bytes) override {
    owner_.stream_consumed(host_index, bytes);
  }
  void console_has_room() override;
  void console_failed(int errno_value) override;

  ConsoleStyle style() const;
  // --console-overflow=drop: which bytes of a chunk to keep.
  std::string_view drop_some(OutputSource& source, std::string_view bytes);
  void drop(OutputSource& source, std::string_view bytes);
  // Gives one chunk to the console.
  void process(OutputSource& source, ChunkKind kind, std::string_view bytes);
  void process_front();
  void enqueue_end(OutputSource& source);
  void drain();
  void schedule_flush();
  // Notes when a source's unfinished line is to be shown, and arms the timer.
  void await_partial(OutputSource& source);
  bool show_due(OutputSource& source, std::int64_t now_ns);
  std::int64_t state_delay() const;
  std::int64_t partial_delay() const;
  // Sets the timer, unless it expires earlier than that.
  void arm(std::int64_t due_ns);
  void arm_footer();
  void arm_held();
  void on_timer();

  boost::asio::io_context& loop_;
  const int fd_;
  const OutputOptions options_;
  ConsoleStreamEvents& owner_;
  Console console_;
  ChunkQueue queue_;
  std::vector<OutputSource*> sources_;
  std::size_t shown_count_[2] = {0, 0};  // By stream: sources that are shown.
  // Sources with an unfinished line; their due_ns says when it is shown.
  std::vector<OutputSource*> waiting_;
  std::uint64_t lines_ = 0;  // Workers' lines given to the console.
  bool flush_scheduled_ = false;
  boost::asio::steady_timer timer_;
  std::int64_t timer_due_ns_ = 0;   // 0 while the timer is not armed.
  std::int64_t last_drawn_ns_ = 0;  // When the footer was drawn.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ivy
