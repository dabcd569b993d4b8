// SPDX-License-Identifier: Apache-2.0
// A function of ours in the form in which libpmix calls it: the many arguments come as one tuple.
//
//   pmix_status_t on_abort(const Upcall<pmix_server_abort_fn_t>::Arguments& call) {
//     const auto& [rank, object, status, text, ranks, count, done, context] = call;
//   module.abort = Upcall<pmix_server_abort_fn_t>::call<on_abort>;
#pragma once

#include <tuple>

namespace ivy {

template <class Function>
struct Upcall;

template <class Answer, class... Parts>
struct Upcall<Answer (*)(Parts...)> {
  using Arguments = std::tuple<Parts...>;

  template <Answer (*handler)(const Arguments&)>
  static Answer call(Parts... parts) {
    return handler(Arguments(parts...));
  }
};

}  // namespace ivy
