// Lets the Python tests play the launcher: hosts the store in which ranks meet. Not shipped.
#include <pybind11/pybind11.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "csrc/base/log.h"
#include "csrc/net/fd.h"
#include "csrc/net/secret.h"
#include "csrc/net/store.h"

namespace hvl::test {
namespace {

namespace py = pybind11;

template <typename T>
T OrThrow(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().ToString());
  return std::move(result).value();
}

/// A job: its secret, and the store that lives as long as this object.
class Job {
 public:
  explicit Job(const std::string& job_id)
      : secret_(net::Secret::Random()),
        secret_fd_(OrThrow(secret_.ToSealedFd())),
        server_(OrThrow(net::StoreServer::Start(secret_, job_id, Logger()))) {}

  int secret_fd() const { return secret_fd_.get(); }
  std::string address() const { return server_->address(); }

 private:
  net::Secret secret_;
  net::UniqueFd secret_fd_;
  std::unique_ptr<net::StoreServer> server_;
};

}  // namespace

PYBIND11_MODULE(_store, module) {
  py::class_<Job>(module, "Job")
      .def(py::init<const std::string&>(), py::arg("job_id"))
      .def_property_readonly("secret_fd", &Job::secret_fd)
      .def_property_readonly("address", &Job::address);
}

}  // namespace hvl::test
