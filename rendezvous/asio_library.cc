// SPDX-License-Identifier: Apache-2.0
// Asio's own sources, compiled once: see "Build facts" in rendezvous/README.md.
#include <boost/asio/impl/src.hpp>
