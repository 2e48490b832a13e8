import time, tempfile, os, sys, torch
from client.demo import arms, model, settings, task, warm_up
from client.demo.server import Server
def main():
    torch.set_num_threads(1)
    s = settings.Settings()
    t = task.Addition(s.digits)
    torch.manual_seed(s.seed)
    m = model.of_task(t)
    with tempfile.TemporaryDirectory() as folder, Server(sys.argv[1]) as server:
        print(server.is_healthy())
        w = warm_up.warm_up(m, t, s, lambda state: None); print(w)
        torch.save(m.state_dict(), folder + "/checkpoint")
        start = time.monotonic()
        def show(learned):
            if len(learned[0]) % 5 == 0 or len(learned[1])%5==0:
                for l in learned:
                    if l:
                        u = l[-1].updates
                        print("%d R %.2f acc %.3f D %.3f DS %.3f | "%(len(l), l[-1].reward, sum(x.accepted for x in u)/sum(x.scored for x in u), sum(x.d for x in u)/l[-1].responses, sum(x.d_sis for x in u)/l[-1].responses), end="")
                print("%.1f"%(time.monotonic()-start), flush=True)
        l = arms.train_arms(server.address, s, 1, folder + "/checkpoint", folder, start + 100, show)
        for x in l: print([(round(y.accept_rate,3), round(y.mean_residual_mass,5)) for y in x[5].by_top_k])
        print(time.monotonic()-start)
        print("\n".join(server.metrics()[:60]))
if __name__ == "__main__":
    main()
