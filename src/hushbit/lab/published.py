"""The paper's numbers, as printed; signal to noise ratios in its own decibels (20 log10)."""

SNR_EPSILONS = (0.5, 1.0, 1.5, 2.0, 2.5)
SNR_BY_EPSILON = {  # plot script of the figure; scheme, users
    ("CPA", 1000): (3.128, 11.338, 14.132, 17.875, 18.838),
    ("CPA", 100): (-5.236, 2.274, 6.49, 8.726, 9.409),
    ("Laplace", 1000): (-4.442, 6.712, 16.119, 20.928, 23.284),
    ("Laplace", 100): (-24.77, -13.641, -5.227, -0.547, 3.109),
    ("signSGD + RR", 1000): (-30.176, -39.552, -45.359, -47.131, -50.543),
    ("signSGD + RR", 100): (-39.036, -40.637, -46.903, -47.455, -48.909),
}

TABLE_USERS = (50, 100, 400, 700, 1000)
ACCURACY_BY_USERS = {
    "vanilla FL": (94, 94, 94, 95, 95),
    "CPA": (93, 96, 96, 96, 96),
}
ERROR_BY_USERS = (0.011, 0.007, 0.0036, 0.0029, 0.0031)

TABLE_EPSILONS = (0.1, 0.15, 0.2, 0.25, 0.3)
ACCURACY_BY_EPSILON = {
    "vanilla FL": (94, 94, 94, 94, 94),
    "CPA": (87, 89, 92, 92, 93),
}
ERROR_BY_EPSILON = (0.0068, 0.0065, 0.0063, 0.0062, 0.0062)

ARCHITECTURES = ("linear", "mlp", "cnn2", "cnn3")
ACCURACY_BY_ARCHITECTURE = {
    "vanilla FL": (87, 90, 48, 60),
    "Laplace": (86, 88, 45, 60),
    "signSGD + RR": (79, 10, 10, 10),
    "JoPEQ": (82, 78, 47, 66),
    "CPA w/o RR": (87, 80, 43, 47),
    "CPA": (85, 86, 50, 67),
}

NESTED_USERS = (10, 100, 1000)
NESTED = {  # accuracy, SNR for each number of users
    "CPA": ((49, -17.57), (81, -0.07), (85, 0.09)),
    "nested CPA": ((59, -6.16), (83, 0.08), (86, 0.17)),
    "JoPEQ": ((46, -31.45), (64, -19.35), (70, -4.45)),
    "CPA w/o RR": ((60, -5.09), (84, 10.10), (87, 15.51)),
    "nested CPA w/o RR": ((63, 3.23), (85, 12.92), (87, 24.18)),
}

ATTACKS = ("none", "ones", "flip")
MALICIOUS = {  # model, nominal share: accuracy for each attack
    ("linear", 0.2): (85, 85, 85),
    ("linear", 0.3): (85, 84, 84),
    ("mlp", 0.2): (86, 85, 84),
    ("mlp", 0.3): (86, 84, 84),
    ("cnn2", 0.2): (50, 48, 48),
    ("cnn2", 0.3): (50, 47, 48),
    ("cnn3", 0.2): (67, 68, 69),
    ("cnn3", 0.3): (67, 69, 66),
}
